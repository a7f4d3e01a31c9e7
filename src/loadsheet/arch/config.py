"""Typed look-ups in a config.json: every key that matters is checked, with its path in the error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadsheet.errors import BadConfig, shorten

_REQUIRED: Final = object()

#: the largest value that any published or planned model comes near; beyond it a config is absurd
LIMITS: Final = {
    "hidden_size": 1 << 20, "intermediate_size": 1 << 22, "num_hidden_layers": 10_000,
    "num_attention_heads": 1 << 16, "vocab_size": 1 << 26, "head_dim": 1 << 16, "num_experts": 1 << 16,
}  # fmt: skip
_DEFAULT_LIMIT: Final = 1 << 28


class Config:
    """A config.json (or a part of it); `where` is its path, shown in errors."""

    def __init__(self, data: Mapping[str, Any], where: str = "config") -> None:
        if not isinstance(data, Mapping):
            raise BadConfig(f"{where}: got {shorten(data)}, expected an object with keys")
        self.data = data
        self.where = where
        self.defaulted: list[str] = []

    def error(self, key: str, expected: str, hint: str = "") -> BadConfig:
        """The error for a key whose value cannot be."""
        got = f"got {shorten(self.data[key])}" if key in self.data else "missing"
        return BadConfig(f"{self.where}.{key}: {got}, expected {expected}", hint)

    def _find(self, keys: Sequence[str]) -> str | None:
        for key in keys:
            if self.data.get(key) is not None:
                return key
        return None

    def size(self, *keys: str, default: Any = _REQUIRED, minimum: int = 1, maximum: int | None = None) -> Any:
        """A whole number under one of `keys`, names of the same thing; a default is noted as defaulted."""
        key = self._find(keys)
        if key is None:
            if default is _REQUIRED:
                raise self.error(keys[0], "a whole number", "the count of parameters depends on this key")
            self.defaulted.append(keys[0])
            return default
        value = self.data[key]
        limit = maximum or next((LIMITS[name] for name in keys if name in LIMITS), _DEFAULT_LIMIT)
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= limit:
            raise self.error(key, f"a whole number from {minimum:,} to {limit:,}")
        for other in keys:
            if self.data.get(other) not in (None, value):
                raise self.error(
                    other, f"the same as `{key}` = {value}", "two names of one size contradict each other"
                )
        return value

    def size_or_null(self, *keys: str, default: Any = _REQUIRED, minimum: int = 1) -> Any:
        """A whole number, or None where the first key is null; the default is for a missing key only."""
        if keys[0] in self.data and self._find(keys) is None:
            return None
        return self.size(*keys, default=default, minimum=minimum)

    def flag(self, *keys: str, default: bool) -> bool:
        """true or false."""
        key = self._find(keys)
        if key is None:
            self.defaulted.append(keys[0])
            return default
        value = self.data[key]
        if not isinstance(value, bool) and value not in (0, 1):
            raise self.error(key, "true or false")
        return bool(value)

    def number(self, *keys: str, default: float, minimum: float = 0.0, maximum: float = 1e9) -> float:
        """A finite number."""
        key = self._find(keys)
        if key is None:
            self.defaulted.append(keys[0])
            return default
        value = self.data[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not minimum <= value <= maximum:
            raise self.error(key, f"a number from {minimum:g} to {maximum:g}")
        return float(value)

    def text(self, *keys: str, default: str) -> str:
        """A string."""
        key = self._find(keys)
        if key is None:
            self.defaulted.append(keys[0])
            return default
        value = self.data[key]
        if not isinstance(value, str) or len(value) > 200:
            raise self.error(key, "a short string")
        return value

    def choice(self, key: str, known: Mapping[str, str], default: str) -> str:
        """A string that must be one of `known`; returns what it stands for."""
        value = self.text(key, default=default)
        if value not in known:
            raise self.error(key, "one of " + ", ".join(f"`{k}`" for k in known))
        return known[value]

    def pattern(self, key: str, length: int) -> list[Any] | None:
        """A list with one entry per layer, or None; its length must be the number of layers."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or len(value) != length:
            got = f"a list of {len(value)}" if isinstance(value, (list, tuple)) else shorten(value)
            raise BadConfig(f"{self.where}.{key}: got {got}, expected one entry for each of {length} layers")
        return list(value)

    def ints(self, key: str) -> list[int]:
        """A list of whole numbers, perhaps empty or missing."""
        value = self.data.get(key)
        if value is None:
            return []
        if not isinstance(value, (list, tuple)) or not all(
            isinstance(v, int) and not isinstance(v, bool) for v in value
        ):
            raise self.error(key, "a list of whole numbers")
        return list(value)

    def part(self, key: str) -> Config:
        """The object under a key, as a Config of its own."""
        if not isinstance(self.data.get(key), Mapping):
            raise self.error(key, "an object")
        return Config(self.data[key], f"{self.where}.{key}")

    def divides(self, divisor_key: str, divisor: int, key: str, value: int) -> None:
        """BadConfig unless `value` is a multiple of `divisor`."""
        if value % divisor:
            raise BadConfig(
                f"{self.where}.{key}: got {value}, expected a multiple of `{divisor_key}` = {divisor}"
            )
