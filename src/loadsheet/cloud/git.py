"""git, as one may run it on a repository that one does not trust.

A repository can name programs that git then runs: hooks, a file system monitor, filters and text
converters of `.gitattributes`, a pager, a signature checker, a transport. None of them is run here, none of
the caller's GIT_ variables counts, the system's configuration is left out, nothing is fetched, and the
repository is not written to. Who owns it is git's own concern: where git refuses, nothing is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Final

from loadsheet.cloud.checklist import CannotLook
from loadsheet.cloud.machine import Machine, Output, answer, started
from loadsheet.errors import one_line

_SETTINGS: Final = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.pager": "cat",
    "core.sshCommand": "false",
    "core.gitProxy": "false",
    "core.alternateRefsCommand": "false",
    "core.quotePath": "false",
    "credential.helper": "",
    "diff.external": "",
    "gpg.program": "false",
    "log.showRoot": "true",
    "log.showSignature": "false",
    "protocol.allow": "never",
    "safe.bareRepository": "explicit",
    "submodule.recurse": "false",
    "color.ui": "false",
}
_VARIABLES: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "false",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_PAGER": "cat",
}
#: keys of any configuration that name a program by a name of their own choice
_PROGRAMS: Final = ("clean", "smudge", "process", "command", "textconv")
_TIMEOUT: Final = 30.0
#: how git says that there is none
_NO_REPOSITORY: Final = "not a git repository"


@dataclass(frozen=True)
class Repository:
    """A work tree with its history."""

    top: Path
    folder: Path  # the .git folder that holds the objects
    machine: Machine
    variables: Mapping[str, str]

    def run(self, *words: str, timeout: float = _TIMEOUT) -> Output:
        """What git answers; CannotLook if it takes too long."""
        with self.start(*words) as process:
            return answer(process, timeout)

    def start(
        self, *words: str, stdin: int = DEVNULL, stderr: int = PIPE
    ) -> AbstractContextManager[Popen[bytes]]:
        """git at work, to be read as it goes; gone when the block is left."""
        line = [_program(self.machine), "-C", str(self.top), "--no-pager", *words]
        return started(line, self.variables, stdin=stdin, stderr=stderr)

    def lines(self, *words: str, timeout: float = _TIMEOUT) -> list[str]:
        """What git answers, split at NUL; CannotLook with its complaint if it fails."""
        output = self.run(*words, timeout=timeout)
        if output.status != 0:
            raise CannotLook(f"git {words[0]}: {one_line(output.err)[:200] or output.status}")
        return [line for line in output.out.split("\0") if line]

    @property
    def head(self) -> str | None:
        """The commit that is checked out; None before the first."""
        output = self.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        return output.out.strip() if output.status == 0 else None


def find(machine: Machine, directory: Path) -> Repository | None:
    """The repository that a folder lies in; None where there is none.

    CannotLook where git is missing, refuses (another owner), or the repository is damaged.
    """
    variables = _variables(machine.environment)
    words = [
        "-C",
        str(directory),
        "rev-parse",
        "--path-format=absolute",
        "--show-toplevel",
        "--git-common-dir",
    ]
    with started([_program(machine), *words], variables) as process:
        output = answer(process, _TIMEOUT)
    if output.status != 0:
        if _NO_REPOSITORY in output.err and not _marked(directory):
            return None
        complaint = one_line(output.err.partition("\n")[0])[:200]
        hint = (
            "`git config --global --add safe.directory PATH` if it is yours" if "dubious" in complaint else ""
        )
        raise CannotLook(complaint or f"git ended with status {output.status}", hint)
    top, _, folder = output.out.rstrip("\n").partition("\n")
    if not directory.resolve().is_relative_to(Path(top).resolve()):
        raise CannotLook(f"the repository says that its work tree lies elsewhere: {top}")
    plain = Repository(Path(top), Path(folder), machine, variables)
    return Repository(plain.top, plain.folder, machine, _without_programs(plain))


def _marked(directory: Path) -> bool:
    """Whether something here calls itself a repository, though git does not see one."""
    return any((place / ".git").exists() for place in (directory.resolve(), *directory.resolve().parents))


def _program(machine: Machine) -> str:
    program = machine.which("git")
    if program is None:
        raise CannotLook("git is not installed", "install git, and look again")
    return program


def _variables(environment: Mapping[str, str], settings: Mapping[str, str] = _SETTINGS) -> dict[str, str]:
    """An environment in which nothing but `settings` is added to what the user's own configuration says."""
    kept = {name: value for name, value in environment.items() if not name.startswith("GIT_")}
    counted = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        counted |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return {**kept, **_VARIABLES, **counted}


def _without_programs(repository: Repository) -> dict[str, str]:
    """The environment with every filter and converter that the configuration names switched off."""
    output = repository.run("config", "--null", "--name-only", "--list")
    settings = dict(_SETTINGS)
    for key in _named_programs(output.out):
        settings[key] = ""
        if key.startswith("filter."):
            settings[key.rpartition(".")[0] + ".required"] = "false"
    return _variables(repository.machine.environment, settings)


def _named_programs(listing: str) -> Iterator[str]:
    for key in listing.split("\0"):
        family, _, rest = key.partition(".")
        if family in {"filter", "diff", "merge"} and rest.rpartition(".")[2].lower() in _PROGRAMS:
            yield key
