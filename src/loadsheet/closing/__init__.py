"""A signed sheet and its end: what was predicted beside what was measured."""

from loadsheet.closing.close import Closed, close
from loadsheet.closing.sign import DoesNotFit, sign

__all__ = ["Closed", "DoesNotFit", "close", "sign"]
