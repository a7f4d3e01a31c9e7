"""Found by every Python that a test starts with `offline.environment`: guards it too (`tests/offline.py`)."""

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "loadsheet_tests_offline", Path(__file__).parent.parent / "offline.py"
)
_guard = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_guard)
_guard.guard_child()
