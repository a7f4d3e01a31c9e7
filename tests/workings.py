"""A second way to an item's amount: evaluate its printed expression with its operands."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Mapping
from typing import Any

_WORD = re.compile(r"[^\W\d]\w*′?")
_POWERS = {"²": "**2", "³": "**3", "⁶": "**6"}
_SIGNS = {"·": "*", "×": "*", "−": "-"}
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


class Prose(Exception):
    """The expression is words, not arithmetic."""


def evaluate(expression: str, operands: Mapping[str, Any]) -> Any:
    """The value of an expression such as `2·(N - N_q)`; Prose if it says more than numbers and operands.

    >>> evaluate("b·(N - N_q)/10²", {"b": 2, "N": 1000, "N_q": 200})
    16.0
    """
    values: dict[str, Any] = {}

    def name(match: re.Match[str]) -> str:
        if match[0] not in operands:
            raise Prose(f"{match[0]!r} in {expression!r}")
        stand_in = f"v{len(values)}"
        values[stand_in] = operands[match[0]]
        return stand_in

    text = expression
    for sign, meaning in {**_POWERS, **_SIGNS}.items():
        text = text.replace(sign, meaning)
    text = re.sub(r"(?<=\d),(?=\d{3})", "", _WORD.sub(name, text))
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        raise Prose(expression) from None

    def value(node: ast.AST) -> Any:
        match node:
            case ast.BinOp(left=left, op=op, right=right):
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.Constant(value=number) if isinstance(number, int | float):
                return number
            case ast.Name(id=stand_in):
                return values[stand_in]
        raise Prose(expression)

    return value(tree.body)
