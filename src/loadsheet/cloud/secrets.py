"""Find keys and tokens in bytes: our own rules, and the plugins of detect-secrets where it is installed.

Every key is a long run of letters, digits and few signs, so these runs are found first, at the speed of
memory; keywords are looked for in them and shortly before, and rules are tried only where one of theirs
stands. So a gigabyte of history takes seconds, and nothing depends on how long a line is, or on an encoding.
Our rules know what detect-secrets 1.5 misses: Hugging Face, Weights & Biases, Anthropic, Google service
accounts, and the secret that stands near its AWS key id. Its entropy and keyword plugins are left out: on
training code they find mostly hashes.

A secret is never passed on whole: outside of this module it is its first characters, its length, and a
fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module, resources
from typing import Any, Final

CHUNK: Final = 1 << 20
#: bytes that two chunks share, so that nothing is cut in two
OVERLAP: Final = 8192
_LINE: Final = 2000  # of a longer line, what lies this far around a keyword
_PAIR: Final = 600  # bytes around a key id in which its secret is looked for
_KEY_HEAD: Final = 4000  # of a private key, what is looked at
_PLACEHOLDERS: Final = {
    "password", "passwd", "secret", "yourpassword", "your_password", "mypassword", "changeme", "username",
    "xxxxxxxx", "redacted", "hidden", "password123", "placeholder", "passphrase", "example",
}  # fmt: skip
_PRIVATE_KEY: Final = re.compile(rb"-----BEGIN (?:[A-Z0-9]{1,16} ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_PUTTY: Final = re.compile(
    rb"PuTTY-User-Key-File-[23]:[^\n]{0,80}\n[\s\S]{0,600}?Private-Lines: [0-9]{1,4}\r?\n"
)
_NOISE: Final = re.compile(
    rb"\\[nrt]|(?:Version|Comment|Proc-Type|DEK-Info|Hash|Charset)[^\n\\]{0,120}|[\s\"'+,()\\]|-----END[^\n]{0,60}"
)
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/]+={0,2}")
_FORTY: Final = re.compile(rb"(?<![A-Za-z0-9/+_-])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=_-])")
#: what keys are made of becomes `a`, anything else a blank
_KINDS: Final = bytes(
    0x61 if chr(c) in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-/+=~" else 0x20
    for c in range(256)
)
_RUN: Final = b"a" * 20  # the shortest secret of our rules, but for passwords
_DIGIT: Final = re.compile(rb"[0-9]")
_BEFORE: Final = 16  # bytes before a run in which its own keyword may begin
_CONTEXT: Final = 300  # bytes before a run with digits in which a name may say what it is
#: keywords of secrets that may be short
_SHORT: Final = (b"://", b"machine")
_ALLOWED: Final = re.compile(rb"pragma: ?(?:allow|white)list[ -]secret")
_ALLOWED_NEXT: Final = re.compile(rb"pragma: ?allowlist[ -]nextline[ -]secret")


@dataclass(frozen=True)
class Rule:
    """A form of secret; see `secret_rules.json`."""

    id: str
    title: str
    keywords: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    before: int | None  # bytes before the keyword from which to search; None: it begins at the keyword
    reach: int
    level: str
    rotate: str


@dataclass(frozen=True)
class Plugin:
    """A plugin of detect-secrets, tried on lines with one of its keywords."""

    id: str
    title: str
    keywords: tuple[bytes, ...]
    detector: Any
    level: str
    whole: bool  # letters or digits right behind it: it is part of something else


@dataclass(frozen=True)
class Found:
    """A secret in some bytes. `secret` stays inside: it is not part of the text of this object."""

    rule: str
    title: str
    level: str
    rotate: str
    line: int
    secret: bytes = field(repr=False)
    allowed: bool = False  # by a comment on the line, or on the one before

    @property
    def redacted(self) -> str:
        """The first characters and the length: never more than a quarter of it."""
        return redact(self.secret)

    @property
    def fingerprint(self) -> str:
        """Tells one secret from another without showing it."""
        return fingerprint(self.secret)

    @property
    def hashed(self) -> str:
        """As a baseline of detect-secrets names it."""
        return hashlib.sha1(self.secret, usedforsecurity=False).hexdigest()


def redact(secret: bytes) -> str:
    """What may be shown of a secret.

    >>> redact(b"hf_" + b"q" * 34), redact(b"hunter2")
    ('hf_q… (37 characters)', 'h… (7 characters)')
    """
    shown = secret[: min(4, len(secret) // 4)].decode("ascii", "replace")
    return f"{shown}… ({len(secret):,} characters)"


#: what `fingerprint` gives
FINGERPRINT: Final = re.compile(r"[0-9a-f]{12}")


def fingerprint(secret: bytes) -> str:
    """First 12 digits of a SHA-256; guessing a secret from it takes as long as guessing the secret."""
    return hashlib.sha256(b"loadsheet secret\0" + secret).hexdigest()[:12]


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    text = resources.files("loadsheet.cloud").joinpath("secret_rules.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


@lru_cache(maxsize=1)
def rules() -> tuple[Rule, ...]:
    """Our own rules."""
    return tuple(
        Rule(
            row["id"],
            row["title"],
            tuple(word.encode() for word in row["keywords"]),
            re.compile(row["pattern"].encode()),
            None if row["at"] == "start" else row["at"],
            row.get("reach", 2048),
            row.get("level", "fail"),
            row["rotate"],
        )
        for row in _data()["rules"]
    )


@lru_cache(maxsize=1)
def plugins() -> tuple[tuple[Plugin, ...], str]:
    """The plugins of detect-secrets, and why some or all are missing."""
    found: list[Plugin] = []
    missing: list[str] = []
    for row in _data()["plugins"]:
        try:
            detector = getattr(import_module(f"detect_secrets.plugins.{row['module']}"), row["class"])()
        except Exception as error:  # another version, or none
            if not found and not missing and isinstance(error, ModuleNotFoundError):
                return (), "detect-secrets is not installed, so its kinds are not looked for"
            missing.append(row["class"])
            continue
        words = tuple(word.encode() for word in row["keywords"])
        title = str(detector.secret_type)
        found.append(
            Plugin(
                f"detect-secrets/{row['module']}",
                title,
                words,
                detector,
                row["level"],
                row.get("whole", False),
            )
        )
    return tuple(found), f"detect-secrets has no {', '.join(missing)} here" if missing else ""


class Scanner:
    """Looks for secrets in bytes. `problem` says what it cannot look for."""

    def __init__(self, *, with_plugins: bool = True) -> None:
        self.plugins, self.problem = plugins() if with_plugins else ((), "")
        tried: dict[bytes, tuple[list[Rule], list[Plugin]]] = {}
        for rule in rules():
            for word in rule.keywords:
                tried.setdefault(word, ([], []))[0].append(rule)
        for plugin in self.plugins:
            for word in plugin.keywords:
                tried.setdefault(word, ([], []))[1].append(plugin)
        words = {*tried, b"private key", b"putty-user-key-file-"} - {*_SHORT}
        self._keywords = re.compile(_trie(sorted(words)))
        # the longest keyword at a place is the one that is seen: it stands for all that begin it
        self._tried = {
            word: (
                [r for w, (rs, _) in tried.items() if word.startswith(w) for r in rs],
                [p for w, (_, ps) in tried.items() if word.startswith(w) for p in ps],
            )
            for word in {*words, *_SHORT}
        }

    def scan(self, data: bytes) -> list[Found]:
        """What stands in a whole content, each secret once for each line, in order."""
        found: dict[tuple[int, bytes], Found] = {}
        for entry in self.stream([data]):
            found.setdefault((entry.line, entry.secret), entry)
        return sorted(found.values(), key=lambda f: (f.line, f.rule))

    def stream(self, pieces: Iterable[bytes]) -> Iterator[Found]:
        """The same from a content that comes in pieces, in memory that does not grow."""
        rest, lines = b"", 1
        seen: set[tuple[int, bytes]] = set()
        first = True
        for piece in pieces:
            if first and piece[:2] in {b"\xff\xfe", b"\xfe\xff"}:
                piece = _as_utf8(piece)  # noqa: PLW2901  (what PowerShell writes)
            first = False
            data = rest + piece if rest else piece
            for entry in self._chunk(data, lines):
                if (entry.line, entry.secret) not in seen:
                    seen.add((entry.line, entry.secret))
                    yield entry
            rest = data[-OVERLAP:]
            lines += data.count(b"\n", 0, len(data) - len(rest))

    def _chunk(self, data: bytes, first_line: int) -> Iterator[Found]:
        """Secrets in some bytes; `first_line` is the number of the line on which they begin."""
        place = _Place(data, first_line)
        taken: list[bytes] = []
        lines_done: set[tuple[int, str]] = set()
        places = list(self._places(data, data.lower()))
        for word, at in places:
            if word == b"private key":
                yield from self._private_key(data, at, place, taken)
            elif word == b"putty-user-key-file-":
                yield from self._putty(data, at, place)
            for rule in self._tried[word][0]:
                yield from self._by_rule(rule, data, at, place, taken)
        # after all of our own rules, which say more: a plugin's keyword may stand before theirs
        for word, at in places:
            start, end = place.line(at)
            for plugin in self._tried[word][1]:
                if (start, plugin.id) not in lines_done:
                    lines_done.add((start, plugin.id))
                    yield from self._by_plugin(plugin, data, start, end, place, taken)

    def _places(self, data: bytes, lowered: bytes) -> Iterator[tuple[bytes, int]]:
        """Keywords and where they stand, as far as there is something near that may be a secret."""
        for word in _SHORT:
            at = lowered.find(word)
            while at >= 0:
                yield word, at
                at = lowered.find(word, at + len(word))
        kinds = data.translate(_KINDS)
        start, looked = kinds.find(_RUN), 0
        while start >= 0:
            end = kinds.find(b" ", start)
            end = len(data) if end < 0 else end
            before = _CONTEXT if _DIGIT.search(data, start, end) else _BEFORE
            for match in self._keywords.finditer(lowered, max(start - before, looked), end):
                yield match[0], match.start()
            looked = end
            start = kinds.find(_RUN, end)

    def _by_rule(
        self, rule: Rule, data: bytes, at: int, place: _Place, taken: list[bytes]
    ) -> Iterator[Found]:
        if rule.before is None:
            match = rule.pattern.match(data, at, min(at + rule.reach, len(data)))
            matches: Sequence[re.Match[bytes]] = [match] if match else []
        else:
            matches = list(rule.pattern.finditer(data, max(at - rule.before, 0), at + rule.reach))
        for match in matches:
            name = "secret" if "secret" in rule.pattern.groupindex else 0
            secret = match[name]
            if _is_placeholder(secret) or secret in taken:
                continue
            taken.append(secret)
            yield place.found(rule.id, rule.title, rule.level, rule.rotate, secret, match.start(name))
            if rule.id == "aws-access-key-id":
                yield from _pairs(data, match, place, taken, rule.rotate)

    def _by_plugin(
        self, plugin: Plugin, data: bytes, start: int, end: int, place: _Place, taken: list[bytes]
    ) -> Iterator[Found]:
        line = data[start:end].decode("latin-1")
        for text in set(plugin.detector.analyze_string(line)):
            secret = text.encode("latin-1", "replace")
            at = data.find(secret, start, end)
            if len(secret) < 8 or at < 0 or _is_placeholder(secret) or _known(secret, taken):
                continue
            after = at + len(secret)
            if data[at - 1 : at].isalnum() or (plugin.whole and data[after : after + 1].isalnum()):
                continue
            taken.append(secret)
            rotate = "revoke it where it was made"
            yield place.found(plugin.id, plugin.title, plugin.level, rotate, secret, at)

    def _private_key(self, data: bytes, at: int, place: _Place, taken: list[bytes]) -> Iterator[Found]:
        """A private key: the header alone, as programs have it that read keys, is none."""
        match = _PRIVATE_KEY.search(data, max(at - 90, 0), at + 32)
        if match is None:
            return
        body = _NOISE.sub(b"", data[match.end() : match.end() + _KEY_HEAD])
        inside = _BASE64.match(body)
        if inside is None or len(inside[0]) < 64 or _is_placeholder(inside[0][:64]):
            return
        secret = inside[0]
        if secret[:64] in taken:
            return
        taken.append(secret[:64])
        around = data[max(match.start() - 800, 0) : match.start()]
        if b'"private_key' in around and b"service_account" in data:
            rotate = "console.cloud.google.com, IAM & Admin, Service Accounts, Keys: delete the key"
            rule = "gcp-service-account-key", "Google service account key"
        else:
            rotate = "make a new pair, and remove the public half wherever it opens something"
            rule = "private-key", "private key"
        yield place.found(*rule, "fail", rotate, secret, match.start())

    def _putty(self, data: bytes, at: int, place: _Place) -> Iterator[Found]:
        match = _PUTTY.match(data, at)
        inside = _BASE64.match(data, match.end()) if match else None
        if inside is not None and len(inside[0]) >= 32:
            rotate = "make a new pair, and remove the public half wherever it opens something"
            yield place.found("private-key", "private key (PuTTY)", "fail", rotate, inside[0], at)


class _Place:
    """Positions in a chunk as lines, and whether a comment there allows a secret."""

    def __init__(self, data: bytes, first_line: int) -> None:
        self.data = data
        self.first_line = first_line

    def line(self, at: int) -> tuple[int, int]:
        """Where the line of a position begins and ends; of a very long one, the part around it."""
        start = self.data.rfind(b"\n", max(at - _LINE, 0), at) + 1
        end = self.data.find(b"\n", at, at + _LINE)
        if start == 0 and at > _LINE:
            start = (at - _LINE) // _LINE * _LINE  # the same for keywords that stand together
        return start, end if end >= 0 else min(at + _LINE, len(self.data))

    def found(self, rule: str, title: str, level: str, rotate: str, secret: bytes, at: int) -> Found:
        """A secret at a position."""
        number = self.first_line + self.data.count(b"\n", 0, at)
        start, end = self.line(at)
        before = self.data.rfind(b"\n", max(start - _LINE, 0), max(start - 1, 0)) + 1
        allowed = bool(_ALLOWED.search(self.data, start, end)) or bool(
            start and _ALLOWED_NEXT.search(self.data, before, start)
        )
        return Found(rule, title, level, rotate, number, secret, allowed)


def _pairs(
    data: bytes, key: re.Match[bytes], place: _Place, taken: list[bytes], rotate: str
) -> Iterator[Found]:
    """The secret beside a key id: 40 characters that look drawn at random."""
    for match in _FORTY.finditer(data, max(key.start() - _PAIR, 0), key.end() + _PAIR):
        secret = match[0]
        if secret in taken or not _looks_random(secret) or _is_placeholder(secret):
            continue
        taken.append(secret)
        title = "AWS secret access key, beside its key id"
        yield place.found("aws-secret-access-key", title, "fail", rotate, secret, match.start())


def _looks_random(secret: bytes) -> bool:
    """Whether 40 characters may be an AWS secret: not a hash in hexadecimal, not a path or a word.

    40 characters drawn from 64 have 4.7 bits each on average, hexadecimal ones at most 4.
    """
    kinds = [any(low <= c <= high for c in secret) for low, high in (b"az", b"AZ", b"09")]
    return sum(kinds) >= 2 and kinds[1] and entropy(secret) > 4.0 and secret.count(b"/") <= 5


def entropy(data: bytes) -> float:
    """Bits for each byte: H = −Σ p·log₂ p over the share p of every byte value (Shannon 1948).

    >>> entropy(b"aabb"), entropy(b"aaaa")
    (1.0, 0.0)
    """
    counts = Counter(data).values()
    return sum(-n / len(data) * math.log2(n / len(data)) for n in counts) + 0.0


def _is_placeholder(secret: bytes) -> bool:
    """Whether it is what documentation writes in the place of a secret."""
    text = secret.decode("latin-1")
    lowered = text.lower()
    return (
        "EXAMPLE" in text
        or lowered in _PLACEHOLDERS
        or any(
            word in lowered for word in ("your_", "your-", "xxxxxx", "......", "******", "<", "placeholder")
        )
        or len(set(text[4:])) <= 3
    )


def _known(secret: bytes, taken: list[bytes]) -> bool:
    return any(secret in other or other in secret for other in taken)


def _as_utf8(data: bytes) -> bytes:
    """UTF-16 with its mark, as ASCII characters stand in UTF-8."""
    encoding = "utf-16-le" if data.startswith(b"\xff\xfe") else "utf-16-be"
    return data.decode(encoding, "replace").encode("utf-8", "replace")


def _trie(words: Sequence[bytes]) -> bytes:
    """A regular expression for any of the words that looks at each byte few times.

    >>> _trie([b"ab", b"abc", b"ax"])
    b'a(?:b(?:c)?|x)'
    """
    branches: dict[bytes, list[bytes]] = {}
    for word in words:
        if word:
            branches.setdefault(word[:1], []).append(word[1:])
    if not branches:
        return b""
    parts = [re.escape(first) + _trie(rest) for first, rest in branches.items()]
    text = parts[0] if len(parts) == 1 and b"" not in words else b"(?:" + b"|".join(parts) + b")"
    return text + b"?" if b"" in words else text
