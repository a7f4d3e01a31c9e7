"""Every error that Loadsheet raises on purpose.

The tree::

    LoadsheetError
    ├── BadInput                 a value that makes no sense: batch 0, price "abc", rank > width
    ├── UnknownName
    │   ├── UnknownModel         no such preset
    │   ├── UnknownGpu           no such GPU id
    │   └── UnknownKey           no such option value (optimizer, precision, stack, ...)
    ├── BadConfig                a config.json whose keys are missing or contradictory
    ├── UnsupportedArchitecture  a `model_type` that no family describes
    └── BadFile                  a file that is not what it says: truncated, too large, lying header

An error is one line that says what, got, expected; `hint` is what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable


class LoadsheetError(Exception):
    """The one base of every error raised on purpose; `str()` is one line, `hint` the way out."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(one_line(message))
        self.hint = one_line(hint)


class BadInput(LoadsheetError):
    """A value that makes no sense where it stands."""


class UnknownName(LoadsheetError):
    """A name that is in none of our tables; the hint lists the nearest known ones."""

    kind = "name"

    def __init__(self, name: object, known: Iterable[str], kind: str | None = None) -> None:
        shown = shorten(name)
        known = sorted(known)
        close = nearest(str(name), known)
        if close:
            hint = "did you mean " + ", ".join(f"`{k}`" for k in close) + "?"
        elif len(known) <= 12:
            hint = "known: " + ", ".join(f"`{k}`" for k in known)
        else:
            hint = f"{len(known)} are known, among them " + ", ".join(f"`{k}`" for k in known[:6])
        super().__init__(f"unknown {kind or self.kind}: got {shown}", hint)


class UnknownModel(UnknownName):
    """No preset, file or folder of that name."""

    kind = "model"


class UnknownGpu(UnknownName):
    """No GPU with that exact id."""

    kind = "GPU"


class UnknownKey(UnknownName):
    """No such value of an option."""


class BadConfig(LoadsheetError):
    """A model config whose keys are missing, contradictory or absurd; the message has the key's path."""


class UnsupportedArchitecture(LoadsheetError):
    """A `model_type` that no family describes: an error, never a guess."""


class BadFile(LoadsheetError):
    """A file that is not what its name or header says."""


def one_line(text: str) -> str:
    """Collapse white space and drop control characters, so hostile text cannot break the terminal."""
    return " ".join("".join(c if c.isprintable() or c.isspace() else "?" for c in text).split())


def shorten(value: object, limit: int = 60) -> str:
    """Show a value from the outside on one line, cut to `limit` characters."""
    try:
        text = repr(value[: limit + 1] if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # an int of thousands of digits, a structure too deep
        text = f"a very long {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names that look most like `name`, best first; none if nothing comes near.

    >>> nearest("h100", ["a100-sxm-80gb", "h100-sxm", "h100-pcie", "t4"])
    ['h100-sxm', 'h100-pcie']
    """
    import difflib

    name = name[:100].lower()
    known = list(known)
    starts = [k for k in known if name and k.startswith(name)]
    close = difflib.get_close_matches(name, known, n=count + len(starts), cutoff=0.55)
    starts.sort(key=lambda k: (-difflib.SequenceMatcher(None, name, k).ratio(), k))
    merged = starts + [k for k in close if k not in starts]
    return merged[:count]
