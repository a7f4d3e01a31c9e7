"""How right the sheet is: predictions beside published measurements."""

from loadsheet.score.report import Report, score
from loadsheet.score.truth import Row, read_truth

__all__ = ["Report", "Row", "read_truth", "score"]
