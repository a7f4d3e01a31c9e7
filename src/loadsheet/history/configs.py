"""Configs beside each other: flat keys, those that differ, conditions on them."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadsheet.errors import BadInput, UnknownKey, one_line, shorten

_CELL: Final = 24  # characters of a value in a table
_DIGITS: Final = 10  # a longer decimal is rounded: 0.0069300000000005 was meant as 0.00693


class _Absent:
    """What stands where a config has no such key."""

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = _Absent()


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config with dotted keys; lists stay whole, and so does an empty dict.

    >>> flat({"lr": 0.1, "model": {"layers": 2, "betas": [0.9, 0.95]}})
    {'lr': 0.1, 'model.layers': 2, 'model.betas': [0.9, 0.95]}
    """
    found: dict[str, Any] = {}
    _flatten(config, "", found)
    return found


def _flatten(config: Mapping[str, Any], prefix: str, found: dict[str, Any]) -> None:
    for key, value in config.items():
        if type(value) is dict and value:
            _flatten(value, f"{prefix}{key}.", found)
        else:
            found[prefix + key] = value


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same in a config: 1 and 1.0 are not, as for the fingerprint.

    >>> same(1, 1.0), same([1, 2], [1, 2]), same(True, 1)
    (False, True, False)
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, dict | list):
        return as_text(one) == as_text(other)
    return bool(one == other) and repr(one) == repr(other)  # 0.0 and -0.0 differ


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys of flat configs that do not have one value in all of them, in the order in which they come."""
    if not configs:
        return []
    first = configs[0]
    keys = dict.fromkeys(first)
    differ: set[str] = set()
    for config in configs[1:]:
        if config.keys() != first.keys():
            differ.update(config.keys() ^ first.keys())
            keys.update(dict.fromkeys(config))
        for key, value in config.items():
            if key not in differ and not (value is (known := first.get(key)) or same(value, known)):
                differ.add(key)
    return [key for key in keys if key in differ]


def short_names(keys: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """For each dotted key its last parts, as many as it takes to tell it from the others and from `taken`.

    >>> short_names(["optimizer.lr", "data.seed", "model.seed"])
    {'optimizer.lr': 'lr', 'data.seed': 'data.seed', 'model.seed': 'model.seed'}
    >>> short_names(["lr", "steps"], taken=["run", "steps"])
    {'lr': 'lr', 'steps': 'steps (config)'}
    """
    keys = list(keys)
    parts = {key: key.split(".") for key in keys}
    lengths = dict.fromkeys(keys, 1)
    used = set(taken)
    while True:
        names: dict[str, list[str]] = {}
        for key in keys:
            names.setdefault(".".join(parts[key][-lengths[key] :]), []).append(key)
        again = False
        for name, members in names.items():
            for key in members:
                if (len(members) > 1 or name in used) and lengths[key] < len(parts[key]):
                    lengths[key] += 1
                    again = True
        if not again:
            found = {key: ".".join(parts[key][-lengths[key] :]) for key in keys}
            return {
                key: one_line(f"{name} (config)" if name in used else name) for key, name in found.items()
            }


def as_text(value: Any) -> str:
    """A value as compact JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def cell(value: Any, limit: int = _CELL) -> str:
    """A value as it stands in a table: text without quotes, cut in the middle if it is long.

    >>> cell(0.003), cell("adamw"), cell([0.9, 0.95]), cell(None), cell(ABSENT), cell(7 * 1e-5), cell(1.0)
    ('0.003', 'adamw', '[0.9,0.95]', 'null', '–', '7e-05', '1.0')
    """
    if value is ABSENT:
        return "–"
    if isinstance(value, float) and len(repr(value)) > _DIGITS:
        return f"{value:.6g}"
    text = one_line(value if isinstance(value, str) else as_text(value)) or '""'
    if len(text) <= limit:
        return text
    half = (limit - 1) // 2
    return f"{text[: limit - 1 - half]}…{text[-half:]}"


# --- conditions -----------------------------------------------------------------------------------------------

_CONDITION: Final = re.compile(r"\s*(?P<key>[^=<>!]+?)\s*(?P<sign>!=|<=|>=|=|<|>)\s*(?P<value>.*)", re.DOTALL)
_ORDER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on one key of a config: `lr=0.003`, `optimizer!=sgd`, `model.layers>=4`."""

    key: str
    sign: str
    value: Any

    def holds(self, value: Any) -> bool:
        """Whether a value fulfils it; an absent one is unequal to everything and in no order.

        >>> Condition("lr", "=", 0.003).holds(3e-3), Condition("lr", "<", 0.1).holds("adam")
        (True, False)
        """
        if self.sign in _ORDER:
            return _is_number(value) and _is_number(self.value) and _ORDER[self.sign](value, self.value)
        equal = _equal(value, self.value)
        return equal if self.sign == "=" else not equal


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal(found: Any, wanted: Any) -> bool:
    if _is_number(found) and _is_number(wanted):
        return bool(found == wanted)
    if isinstance(found, str):
        return found == (wanted if isinstance(wanted, str) else as_text(wanted))
    return found is not ABSENT and type(found) is type(wanted) and as_text(found) == as_text(wanted)


def parse_condition(text: str) -> Condition:
    """A condition from the command line. Raises BadInput for one that is none, or an order of no numbers.

    >>> parse_condition("lr<=3e-3")
    Condition(key='lr', sign='<=', value=0.003)
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise BadInput(
            f"--where: got {shorten(text)}, expected a condition such as `lr=0.003`",
            "signs: = != < <= > >=; the key as in the config, such as `optimizer.lr`",
        )
    try:
        value = json.loads(match["value"])
    except (ValueError, RecursionError):
        value = match["value"]
    if match["sign"] in _ORDER and not _is_number(value):
        raise BadInput(
            f"--where: got {shorten(match['value'])} after {match['sign']}, expected a number",
            "text can be compared by = and !=",
        )
    return Condition(match["key"], match["sign"], value)


def resolve(name: str, known: Iterable[str], what: str = "key of a config") -> str:
    """The dotted key that is meant: itself, or the only one that ends so. Raises UnknownKey, BadInput.

    >>> resolve("lr", ["optimizer.lr", "seed"])
    'optimizer.lr'
    """
    known = set(known)
    if name in known:
        return name
    ending = sorted(key for key in known if key.endswith(f".{name}"))
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise BadInput(
            f"{what}: got {shorten(name)}, which ends {len(ending)} of them, expected one",
            ", ".join(ending[:6]),
        )
    raise UnknownKey(name, known, what)
