"""Whether the loop over the steps can still go on, seen from where the program is now.

After `break` a loop whose iterator somebody holds (a progress bar, a variable) does not know that it was left:
it waits, and a signal that it only notes would be noted for ever.
"""

from __future__ import annotations

import dis
import inspect
from types import CodeType, FrameType
from typing import Final

from loadsheet.run.carried import ALWAYS, ENDS, LONGEST, index_at
from loadsheet.run.reach import user_frames

#: a call of these waits without being among the calls in progress
_WAITING: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Place:
    """The user's `for` that asks for the steps; to be made while it asks for one."""

    def __init__(self) -> None:
        frames = user_frames()
        frame = frames[0] if frames else None
        self._code: CodeType | None = None
        # anything but a `for` (`next`, in a call of the user's own that returns with the step) says nothing
        if frame is not None and not frame.f_code.co_flags & _WAITING and _at(frame) == "FOR_ITER":
            self._code, self._head, self._frame = frame.f_code, frame.f_lasti, id(frame)

    def left(self, frame: FrameType | None) -> bool:
        """Whether the program, in this call of the same thread, has no way back to it; False if nobody knows."""
        if self._code is None:
            return False
        while frame is not None:
            if id(frame) == self._frame and frame.f_code is self._code:
                return not _way(self._code, frame.f_lasti, self._head)
            frame = frame.f_back
        return True


def _at(frame: FrameType) -> str:
    """The name of the instruction that a call is at."""
    instructions = list(dis.get_instructions(frame.f_code))
    return instructions[index_at(instructions, frame.f_lasti)].opname


def _way(code: CodeType, at: int, to: int) -> bool:
    """Whether there is a way from the instruction at one byte to the `for` at another, by exceptions too."""
    bytecode = dis.Bytecode(code)
    instructions = list(bytecode)
    number = {each.offset: k for k, each in enumerate(instructions)}
    here, head = (index_at(instructions, byte) for byte in (at, to))
    if len(instructions) > LONGEST:
        return True
    jumps = {*dis.hasjrel, *dis.hasjabs}
    todo, seen = [here], set()
    while todo:
        k = todo.pop()
        if k in seen:
            continue
        seen.add(k)
        if k == head:
            return True
        each = instructions[k]
        todo += [
            number[entry.target]
            for entry in getattr(bytecode, "exception_entries", ())
            if entry.start <= each.offset < entry.end and entry.target in number
        ]
        if each.opcode in jumps and each.argval in number:
            todo.append(number[each.argval])
        if not (ENDS.fullmatch(each.opname) or ALWAYS.fullmatch(each.opname)) and k + 1 < len(instructions):
            todo.append(k + 1)
    return False
