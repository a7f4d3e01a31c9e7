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
        self.stacks: list[tuple[str, Tower, tuple[int, ...]]] = []

    @property
    def numel(self) -> int:
        """Number of its parameters."""
        return sum(p.numel * times for p, times in self.counted())

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
        """A module inside this one, under its name."""
        self.stacks.append((name, tower, (0,)))

    def stack(self, name: str, tower: Tower, count: int) -> None:
        """`count` equal modules: name.0, name.1, ..."""
        self.stacks.append((f"{name}.*", tower, tuple(range(count))))

    def some(self, name: str, tower: Tower, indices: list[int]) -> None:
        """Equal modules at some places of a list: name.2, name.5, ..."""
        self.stacks.append((f"{name}.*", tower, tuple(indices)))

    def parameters(self, prefix: str = "") -> Iterator[Parameter]:
        """Every parameter with its full name."""
        yield from super().parameters(prefix)
        for name, tower, indices in self.stacks:
            for index in indices:
                yield from tower.parameters(f"{prefix}{name.replace('*', str(index))}.")

    def counted(self) -> Iterator[tuple[Parameter, int]]:
        """(parameter, how many like it): equal modules are visited once."""
        for p in super().parameters():
            yield p, 1
        for _, tower, indices in self.stacks:
            for p, times in tower.counted():
                yield p, times * len(indices)
