"""Which runs a subcommand is about: those named, or all below the folder, under conditions on their configs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from loadsheet.errors import BadInput

if TYPE_CHECKING:
    from loadsheet.history.rows import RunRow


def where_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option `--where`, conditions on the configs; the parameter is `where`."""
    option = click.option(
        "--where", multiple=True, metavar="KEY=VALUE", help="Only these: = != < <= > >=; may be repeated."
    )
    return option(function)


def seed_key_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option `--seed-key KEY`, further keys of a config that are seeds; the parameter is `seed_key`."""
    option = click.option(
        "--seed-key", multiple=True, metavar="KEY", help="A further key that is a seed, for --seeds. [seed]"
    )
    return option(function)


def rows_of(root: str, words: Sequence[str], where: Sequence[str]) -> list[RunRow]:
    """The runs, each once. Raises UnknownName for one that there is not, BadInput if none is left."""
    from loadsheet.history.index import find, scan
    from loadsheet.history.listing import chosen

    rows = [find(root, word) for word in words] if words else scan(root)
    rows = chosen({row.path: row for row in rows}.values(), (), where)
    if not rows:
        what = "under these conditions" if where else f"below `{root}`"
        raise BadInput(f"runs: got no run {what}, expected at least one", "`loadsheet runs list` shows all")
    return rows
