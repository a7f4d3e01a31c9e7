"""Encoders for images and sound beside a language model: their weights are counted, but no text passes them.

A sheet is about text, so a tower is not on the tape: it costs memory as weights (role "other"), and
neither FLOPs nor activations.
"""

from __future__ import annotations

from collections.abc import Iterator

from loadsheet.arch.layers.base import Layer, Parameter


class Tower(Layer):
    """A tree of named weights, written in the terms of PyTorch's modules."""

    def __init__(self) -> None:
        super().__init__()
        self.stacks: list[tuple[str, Tower, int]] = []

    @property
    def numel(self) -> int:
        """Number of its parameters."""
        own = sum(p.numel for p in self._own)
        return own + sum(count * tower.numel for _, tower, count in self.stacks)

    def weight(self, name: str, *shape: int) -> None:
        """A bare parameter."""
        self.own(name, shape, "other")

    def linear(self, name: str, n_in: int, n_out: int, *, bias: bool = True) -> None:
        """torch.nn.Linear(n_in, n_out)."""
        self.weight(f"{name}.weight", n_out, n_in)
        if bias:
            self.weight(f"{name}.bias", n_out)

    def conv(self, name: str, n_in: int, n_out: int, *kernel: int, bias: bool = True) -> None:
        """torch.nn.Conv1d or Conv2d; n_in is that of one group."""
        self.weight(f"{name}.weight", n_out, n_in, *kernel)
        if bias:
            self.weight(f"{name}.bias", n_out)

    def norm(self, *names: str, width: int, bias: bool = True) -> None:
        """LayerNorms of one width; without bias, RMSNorms."""
        for name in names:
            self.weight(f"{name}.weight", width)
            if bias:
                self.weight(f"{name}.bias", width)

    def part(self, name: str, tower: Tower) -> None:
        """A module inside this one, under its name; an empty name puts its weights here."""
        self.stacks.append((name, tower, 1))

    def stack(self, name: str, tower: Tower, count: int) -> None:
        """`count` equal modules: name.0, name.1, ..."""
        self.stacks.append((f"{name}.*", tower, count))

    def parameters(self, prefix: str = "") -> Iterator[Parameter]:
        """Every parameter with its full name."""
        yield from super().parameters(prefix)
        for name, tower, count in self.stacks:
            for index in range(count):
                place = name.replace("*", str(index))
                yield from tower.parameters(f"{prefix}{place}." if place else prefix)
