"""Text from outside on its way into a job file: a command, names, comments, scripts and YAML.

A command becomes a list of arguments here, once, and is quoted again by whoever writes it down. So nothing in it
can become syntax of a shell or of YAML.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from loadsheet.errors import BadInput, one_line, shorten

_SHELL: Final = {
    "|": "a pipe", "&": "`&`", ";": "`;`", "<": "a redirection", ">": "a redirection", "(": "a parenthesis",
    ")": "a parenthesis", "\n": "a second line", "$": "`$`", "`": "a backquote",
}  # fmt: skip
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
#: what bash does itself: an engine without a shell would look for a program of that name
_OF_SHELLS: Final = frozenset(
    [".", "!", "[[", "{", "}", "alias", "case", "cd", "declare", "eval", "exec", "export", "for", "function", "if",
     "let", "local", "readonly", "select", "set", "shopt", "source", "trap", "ulimit", "umask", "unset", "until",
     "while"]
)  # fmt: skip
_NAME: Final = re.compile(r"[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?")
_MOST_ARGUMENTS: Final = 1000
_MOST_TEXT: Final = 32_768
MAX_NAME: Final = 40


def parse_command(text: str) -> tuple[str, ...]:
    """The arguments of a command line, as a shell would split it; BadInput for what only a shell could do.

    >>> parse_command("python train.py --name 'a b; $(c)'")
    ('python', 'train.py', '--name', 'a b; $(c)')
    """
    plain = clean(text, "--command")
    if (found := _syntax(plain)) is not None:
        raise BadInput(
            f"--command: got {found} in {shorten(text)}, expected one program and its arguments",
            "the program must get the signals itself: put the rest into --setup or a script, or quote it '…'",
        )
    try:
        words = shlex.split(plain)
    except ValueError as error:
        raise BadInput(f"--command: got {shorten(text)} ({error}), expected matching quotes") from None
    if not words or not words[0]:
        raise BadInput(
            "--command: got nothing, expected how the training is started",
            "for example --command 'python train.py'",
        )
    _require_program(words)
    if len(words) > _MOST_ARGUMENTS:
        raise BadInput(f"--command: got {len(words):,} arguments, expected at most {_MOST_ARGUMENTS:,}")
    return tuple(words)


def _require_program(words: Sequence[str]) -> None:
    """BadInput where the first word means something only to a shell, so that it would be another job in each engine."""
    first = words[0]
    if _ASSIGNMENT.match(first):
        raise BadInput(
            f"--command: got the variable {shorten(first)} in front, expected one program and its arguments",
            f"`env` sets it: --command 'env {one_line(first)[:60]} …'",
        )
    if first in _OF_SHELLS:
        raise BadInput(
            f"--command: got {shorten(first)}, which only a shell can do, expected one program and its arguments",
            "put it into --setup or a script",
        )


def check_setup(lines: Iterable[str]) -> tuple[str, ...]:
    """Lines of shell that stand before the training, each complete in itself; BadInput."""
    found = tuple(clean(line, "--setup") for line in lines)
    for line in found:
        try:
            shlex.split(line, comments=True)
        except ValueError as error:
            raise BadInput(
                f"--setup: got {shorten(line)} ({error}), expected matching quotes", "put it into a script"
            ) from None
        if line.rstrip("\n").endswith("\\"):
            raise BadInput(f"--setup: got {shorten(line)}, expected a line that ends", "put it into a script")
    return found


def _syntax(text: str) -> str | None:
    """What in a command line only a shell could carry out; None if nothing."""
    quote, before, skip = "", " ", False
    for sign in text:
        if skip:
            skip = False
        elif quote:
            if sign == quote:
                quote = ""
            elif quote == '"' and sign in "$`":
                return _SHELL[sign]
            elif quote == '"' and sign == "\\":
                skip = True
        elif sign in "'\"":
            quote = sign
        elif sign == "\\":
            skip = True
        elif sign in _SHELL:
            return _SHELL[sign]
        elif before.isspace() and sign in "~#":
            return f"`{sign}`"
        before = sign
    return None


def clean(text: str, what: str) -> str:
    """Text that a file can hold: no NUL, no halves of characters, not too long; BadInput."""
    if "\0" in text:
        raise BadInput(f"{what}: got a NUL character in {shorten(text)}, expected text")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise BadInput(f"{what}: got bytes that are no text in {shorten(text)}, expected UTF-8") from None
    if size > _MOST_TEXT:
        raise BadInput(f"{what}: got {size:,} bytes, expected at most {_MOST_TEXT:,}")
    return text


def check_name(name: str) -> str:
    """A name that all four engines take; BadInput for another.

    The rule is that of RFC 1123 labels that begin with a letter, of at most 40 characters: Kubernetes' for
    objects, and within what SkyPilot, dstack and Slurm accept.
    """
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"--name: got {shorten(name)}, expected lower-case letters, digits and hyphens, at most {MAX_NAME}, "
            "beginning with a letter and not ending with a hyphen",
            f"--name {slug(name)}",
        )
    return name


def slug(text: str) -> str:
    """A name that `check_name` takes, made from any text.

    >>> slug("Llama 3/8B (mine)"), slug("???"), slug("7b")
    ('llama-3-8b-mine', 'training', 'training-7b')
    """
    found = re.sub(r"[^a-z0-9]+", "-", text.lower()[:200]).strip("-")
    if not found[:1].isalpha():
        found = f"training-{found}".strip("-")
    return found[:MAX_NAME].rstrip("-")


def token(text: str, what: str) -> str:
    """A word that stands in a job file as it is: a partition, an account, a queue; BadInput for anything else."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:,/@+-]{0,199}", text):
        raise BadInput(f"{what}: got {shorten(text)}, expected letters, digits and any of _ . : , / @ + -")
    return text


def comment(lines: Iterable[str]) -> list[str]:
    """Lines of comment for a shell script or YAML: each stays one line, and none can be a directive."""
    return [f"# {one_line(line)}" if not line.startswith(" ") else f"#   {one_line(line)}" for line in lines]


def shell(words: Sequence[str]) -> str:
    """Arguments as a line of shell that means exactly them."""
    return shlex.join(words)


# --- YAML ---------------------------------------------------------------------------------------------

_PLAIN: Final = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
#: what YAML 1.1 or 1.2 reads as something else than text
_WORDS: Final = frozenset(["true", "false", "yes", "no", "on", "off", "null", "y", "n"])
_BLOCK: Final = re.compile(r"[\n\x20-\x7e]+")


def yaml(value: Mapping[str, Any]) -> str:
    """A mapping of mappings, lists, text, numbers, booleans and null as YAML 1.1 and 1.2 both read it.

    Text is quoted unless it cannot be taken for anything else; several lines of plain ASCII stand as they are.
    """
    return "\n".join(_mapping(value, 0)) + "\n"


def _mapping(value: Mapping[str, Any], depth: int) -> list[str]:
    lines = []
    for key, entry in value.items():
        lines += _entry(f"{'  ' * depth}{_scalar(key)}:", entry, depth + 1)
    return lines


def _entry(head: str, value: Any, depth: int) -> list[str]:
    if isinstance(value, Mapping) and value:
        return [head, *_mapping(value, depth)]
    if isinstance(value, list | tuple) and value:
        lines = [head]
        for entry in value:
            pad = "  " * depth
            if isinstance(entry, Mapping) and entry:
                first, *rest = _mapping(entry, depth + 1)
                lines += [f"{pad}- {first[len(pad) + 2 :]}", *rest]
            else:
                lines += _entry(f"{pad}-", entry, depth + 1)
        return lines
    if isinstance(value, str) and _as_block(value):
        pad = "  " * depth
        return [f"{head} |", *(f"{pad}{line}".rstrip(" ") for line in value[:-1].split("\n"))]
    return [f"{head} {_scalar(value)}"]


def _as_block(text: str) -> bool:
    """Whether text can stand as a literal block, unchanged: lines of ASCII, one newline at the end, no indent first."""
    return (
        text.endswith("\n")
        and "\n" in text[:-1]
        and not text.endswith("\n\n")
        and text[0] not in " \n"
        and not re.search(r" +$", text, re.MULTILINE)
        and _BLOCK.fullmatch(text) is not None
    )


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        return '"' + "".join(map(_escaped, value)) + '"'
    return "[]" if isinstance(value, list | tuple) else "{}"


def _escaped(sign: str) -> str:
    code = ord(sign)
    if sign in '"\\':
        return "\\" + sign
    if 0x20 <= code <= 0x7E:
        return sign
    if sign == "\n":
        return "\\n"
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
