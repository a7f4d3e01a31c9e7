"""How each engine spells a GPU, and the regions of the clouds: engines check neither beforehand."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any, Final

from loadsheet.errors import BadInput, UnknownKey, nearest, shorten
from loadsheet.hardware import gpu as find_gpu

ANY: Final = "any"
_LONGEST: Final = 200


@cache
def _data(name: str) -> dict[str, Any]:
    text = files("loadsheet.cloud.export").joinpath(name).read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def gpu_name(engine: str, gpu: str) -> str:
    """The engine's own spelling of one of our GPU ids; BadInput, with the nearest that it has, if there is none.

    >>> gpu_name("sky", "a100-sxm-80gb"), gpu_name("dstack", "a100-sxm-80gb")
    ('A100-80GB', 'A100:80GB')
    """
    known = {name: entry[engine] for name, entry in _data("gpu_names.json")["gpus"].items() if entry[engine]}
    if gpu in known:
        return str(known[gpu])
    near = nearest(gpu, known)
    other = f"nearest known: {', '.join(f'{name} = {known[name]}' for name in near)}; " if near else ""
    raise BadInput(
        f"gpu: got {shorten(gpu)}, expected one whose name for {engine} is known",
        f"{other}--gpu-name NAME says how {engine} calls it",
    )


#: how an engine writes a card; the number of them is put behind it. dstack's may have its memory, or be several
_SPELLED: Final = {
    "dstack": re.compile(r"[A-Za-z0-9][\w.+,-]*(?::\d+(?:\.\d+)?GB(?:\.\.(?:\d+(?:\.\d+)?GB)?)?)?", re.ASCII),
    "k8s": re.compile(r"[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?", re.ASCII),  # the value of a label
    "sky": re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII),
    "slurm": re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII),
}
#: where the names stand
_SHOWN: Final = {
    "dstack": "for example A100:80GB",
    "k8s": "the value of the label nvidia.com/gpu.product: `kubectl get nodes -L nvidia.com/gpu.product`",
    "sky": "`sky gpus list` shows them",
    "slurm": "`sinfo -o %G` shows those of the site",
}


def given_name(engine: str, name: str) -> str:
    """A card's name as the user spells it for an engine; BadInput for what holds more than a name.

    >>> given_name("slurm", "a100"), given_name("dstack", "A100:80GB")
    ('a100', 'A100:80GB')
    """
    if len(name) > _LONGEST or not _SPELLED[engine].fullmatch(name):
        kind, colon, count = name.rpartition(":")
        hint = _SHOWN[engine]
        if colon and count.isdecimal():
            hint = f"the number is the sheet's, or 0 by --gpus: --gpu-name {shorten(kind, 60)}"
        raise BadInput(
            f"--gpu-name: got {shorten(name)}, expected the name of one card as {engine} spells it", hint
        )
    return name


def spelled_alike(engine: str, gpu: str) -> list[str]:
    """Our ids of other cards that the engine calls by the same name: it may give any of them."""
    table = _data("gpu_names.json")["gpus"]
    mine = table.get(gpu, {}).get(engine)
    return [name for name, entry in table.items() if mine and entry[engine] == mine and name != gpu]


def vendor(gpu: str) -> str:
    """The maker of one of our GPU ids, in lower case."""
    return find_gpu(gpu).vendor.lower()


def check_region(region: str) -> tuple[str, str | None, bool]:
    """`CLOUD` or `CLOUD/REGION`: both parts, and whether they could be checked.

    Raises UnknownKey for a region that a cloud whose regions we know does not have, BadInput for another form.

    >>> check_region("aws/us-east-1"), check_region("gcp"), check_region("lambda/us-tx-1")
    (('aws', 'us-east-1', True), ('gcp', None, True), ('lambda', 'us-tx-1', False))
    """
    cloud, slash, place = region.lower().partition("/")
    if not cloud.isalnum() or (slash and not place) or "/" in place:
        raise BadInput(
            f"--region: got {shorten(region)}, expected CLOUD or CLOUD/REGION such as aws/us-east-1"
        )
    known = _data("regions.json")["clouds"]
    if cloud not in known:
        if nearby := nearest(cloud, known, 1):
            raise UnknownKey(cloud, known, f"cloud, near `{nearby[0]}`")
        return cloud, place or None, False
    if place and place not in known[cloud]:
        raise UnknownKey(place, known[cloud], f"region of {cloud}")
    return cloud, place or None, True
