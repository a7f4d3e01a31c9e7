"""Settings shared by every test: how hard Hypothesis tries, and how long an example may take."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import settings
from offline import offline  # noqa: F401  (the fixture that keeps a test on this machine)

# On a shared machine an example may be held up at any moment, so CI sets no deadline; it draws the same
# examples every time, so that a red run means the change and not the dice.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("dev", deadline=timedelta(seconds=2), print_blob=True)
settings.register_profile("thorough", deadline=None, max_examples=5000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


# What the tables look like depends on how wide the terminal is said to be: no test shall depend on that of
# whoever runs it (with -n, the tests' own processes are told one).
os.environ.pop("COLUMNS", None)

# A shell starts what it runs in the background deaf to Ctrl-C, and every process below inherits that: a run
# respects it, so no test that sends one would end. The others may have been ignored on purpose too (nohup).
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


@pytest.fixture(scope="module", autouse=True)
def frozen_garbage() -> Iterator[None]:
    """A run looks once through all living objects, for what was not kept: those of other files are left out."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


#: programs that train when they are imported; a file that is only found by the programs of a test
collect_ignore_glob = ["torture/scripts/*", "offline_site/*"]
