"""Settings shared by every test: how hard Hypothesis tries, and how long an example may take."""

from __future__ import annotations

import os
from datetime import timedelta

from hypothesis import settings

# On a shared machine an example may be held up at any moment, so CI sets no deadline; it draws the same
# examples every time, so that a red run means the change and not the dice.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("dev", deadline=timedelta(seconds=2), print_blob=True)
settings.register_profile("thorough", deadline=None, max_examples=5000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))
