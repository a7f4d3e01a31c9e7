"""The answer: one sheet for one model, recipe, GPU and price."""

from loadsheet.sheet.plan import Sheet, plan

__all__ = ["Sheet", "plan"]
