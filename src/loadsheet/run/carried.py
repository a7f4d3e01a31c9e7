"""Variables that a loop carries from one step into the next, found in its own code.

A batch that is fetched at the end of a step for the next one, or the hidden state of a recurrent network, is
a state that no checkpoint has. That a variable is carried is a fact of the code: there is a way round the
loop on which it is read before it is written. (What compilers call live at the head of the loop: Aho, Sethi
and Ullman, "Compilers", 1986, section 10.6.)
"""

from __future__ import annotations

import dis
import re
from collections.abc import Sequence
from types import CodeType
from typing import Final

_USES: Final = re.compile(r"(LOAD|STORE|DELETE)_(?:FAST|NAME|GLOBAL|DEREF)")
ALWAYS: Final = re.compile(r"JUMP_(FORWARD|BACKWARD|ABSOLUTE|BACKWARD_NO_INTERRUPT|NO_INTERRUPT)")
ENDS: Final = re.compile(r"RETURN_.*|RAISE_VARARGS|RERAISE")
#: instructions beyond which nobody waits for the answer
LONGEST: Final = 20_000

Node = tuple[int, bool]  # an instruction, and for the head of a loop inside: whether it was there before


def carried(code: CodeType, at: int) -> set[str]:
    """The variables that `code` writes on a way from the instruction at byte `at` back to it, and may read before.

    Inner `for` loops are taken to run at least once; ways through an exception do not count.
    """
    instructions = list(dis.get_instructions(code))
    if len(instructions) > LONGEST:
        return set()
    number = {each.offset: k for k, each in enumerate(instructions)}
    here = index_at(instructions, at)
    jumps = {*dis.hasjrel, *dis.hasjabs}

    def entered(to: int, source: int, again: bool = False) -> Node:
        """The node at `to`, come from `source`; the widening of an argument is part of what it widens."""
        head = to != here and instructions[to].opname in ("FOR_ITER", "EXTENDED_ARG")
        return to, head and (again or source > to)

    def following(node: Node) -> list[Node]:
        k, again = node
        each = instructions[k]
        if ENDS.fullmatch(each.opname):
            return []
        out = []
        if not ALWAYS.fullmatch(each.opname) and k + 1 < len(instructions):
            out.append(entered(k + 1, k, again and each.opname == "EXTENDED_ARG"))
        leaves = each.opname == "FOR_ITER" and not again  # the head of the loop, or of one inside that begins
        if each.opcode in jumps and not leaves and each.argval in number:
            out.append(entered(number[each.argval], k))
        return out

    start = (here, False)
    after: dict[Node, list[Node]] = {}
    before: dict[Node, list[Node]] = {}
    todo = [start]
    while todo:
        node = todo.pop()
        if node not in after:
            after[node] = following(node)
            for one in after[node]:
                before.setdefault(one, []).append(node)
            todo += after[node]
    round_trip: set[Node] = set()
    todo = list(before.get(start, []))
    while todo:
        node = todo.pop()
        if node not in round_trip:
            round_trip.add(node)
            todo += before.get(node, [])
    if start not in round_trip:
        return set()

    reads: dict[Node, set[str]] = {}
    writes: dict[Node, set[str]] = {}
    for node in round_trip:
        reads[node], writes[node] = _uses(instructions[node[0]])
    live: dict[Node, set[str]] = {node: set() for node in round_trip}
    todo = list(round_trip)
    while todo:
        node = todo.pop()
        out = set().union(*(live[one] for one in after[node] if one in round_trip))
        found = out if node == start else reads[node] | (out - writes[node])
        if found != live[node]:
            live[node] = found
            todo += [one for one in before.get(node, []) if one in round_trip]
    return live[start] & set().union(*writes.values())


def index_at(instructions: Sequence[dis.Instruction], at: int) -> int:
    """Which of the instructions of a code is at a byte: the last that does not begin behind it."""
    return max((k for k, each in enumerate(instructions) if each.offset <= at), default=0)


def _uses(each: dis.Instruction) -> tuple[set[str], set[str]]:
    """What one instruction reads before it writes it, and what it writes; Python 3.13 joins two in one."""
    kinds = _USES.findall(each.opname)
    names = each.argval if isinstance(each.argval, tuple) else (each.argval,) * len(kinds)
    reads: set[str] = set()
    writes: set[str] = set()
    for kind, name in zip(kinds, names, strict=False):
        if kind != "LOAD":
            writes.add(name)
        elif name not in writes:
            reads.add(name)
    return reads, writes
