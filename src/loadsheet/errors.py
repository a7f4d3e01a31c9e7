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
        super().__init__(_cut(one_line(message)))
        self.hint = hint
        #: warnings about what was given, which may explain it
        self.warnings: tuple[str, ...] = ()

    @property
    def hint(self) -> str:
        """The way out; a traceback shows it below the message, as a note (PEP 678)."""
        return self._hint

    @hint.setter
    def hint(self, text: str) -> None:
        notes = [note for note in getattr(self, "__notes__", ()) if note != _note(getattr(self, "_hint", ""))]
        self._hint = _cut(one_line(text))
        if self._hint:
            notes.append(_note(self._hint))
        self.__notes__ = notes


class BadInput(LoadsheetError):
    """A value that makes no sense where it stands."""


class UnknownName(LoadsheetError):
    """A name that is in none of our tables; the hint lists the nearest known ones."""

    kind = "name"

    def __init__(self, name: object, known: Iterable[str], kind: str | None = None) -> None:
        shown = shorten(name)
        known = sorted(known)
        close = nearest(str(name), known)
        hint = "did you mean " + ", ".join(f"`{k}`" for k in close) + "?" if close else ""
        if not known:
            hint = f"there is no {kind or self.kind} at all"
        elif len(known) <= 12:
            hint = f"{hint} known: ".lstrip() + ", ".join(f"`{k}`" for k in known)
        elif not close:
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


def _note(hint: str) -> str:
    return f"hint: {hint}"


def _cut(text: str, limit: int = 400) -> str:
    """The text without its middle if it is too long: a message must not drown in what it was given."""
    half = (limit - 1) // 2
    return text if len(text) <= limit else f"{text[:half]}…{text[-half:]}"


def one_line(text: str) -> str:
    """Collapse white space and drop control characters, so hostile text cannot break the terminal."""
    return " ".join("".join(c if c.isprintable() or c.isspace() else "?" for c in text).split())


def a_type(value: object) -> str:
    """The type of a value with its article.

    >>> a_type(1), a_type("text"), a_type(object())
    ('an int', 'a str', 'an object')
    """
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def shorten(value: object, limit: int = 60) -> str:
    """Show a value from the outside on one line, cut to `limit` characters."""
    try:
        text = repr(value[: limit + 1] if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # an int of thousands of digits, a structure too deep
        text = f"a very long {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names that look most like `name`, best first; none if nothing comes near.

    Case, spaces and the signs between words do not count; a name with words of its own around a known
    one ("nvidia h100") finds it too.

    >>> nearest("h100", ["a100-sxm-80gb", "h100-sxm", "h100-pcie", "t4"])
    ['h100-sxm', 'h100-pcie']
    >>> nearest("NVIDIA H100 SXM5", ["a100-sxm-80gb", "h100-sxm", "h100-pcie", "t4"])
    ['h100-sxm', 'h100-pcie']
    """
    from difflib import SequenceMatcher

    wanted, words = _squeeze(name[:100])
    if not wanted:
        return []
    scored: list[tuple[float, str]] = []
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)
    for candidate in known:
        text, parts = _squeeze(candidate)
        matcher.set_seq1(text)
        score = 0.0
        if matcher.real_quick_ratio() >= _NEAR and matcher.quick_ratio() >= _NEAR:
            score = matcher.ratio()
        if text == wanted:
            score = 4.0
        elif text.startswith(wanted) or parts == words[: len(parts)]:
            score = 2 + matcher.ratio()
        elif shared := [w for w in words if w in parts and _telling(w)]:
            score = max(score, 0.5 + matcher.ratio() / 2 + (parts[0] in shared))
        if score >= _NEAR:
            scored.append((-score, candidate))
    return [candidate for _, candidate in sorted(scored)[:count]]


_NEAR = 0.6


def _telling(word: str) -> bool:
    """Whether a word alone names something ("h100", "8x7b"), as no size does ("8b", "80gb")."""
    return word.rstrip("abcdefghijklmnopqrstuvwxyz").strip(".0123456789") != "" and any(
        c.isdigit() for c in word
    )


def _squeeze(name: str) -> tuple[str, list[str]]:
    """A name in lower case without anything but letters and digits, and its words."""
    words = "".join(c if c.isalnum() or c == "." else " " for c in name.lower()).split()
    return "".join(words).replace(".", ""), words or [""]
