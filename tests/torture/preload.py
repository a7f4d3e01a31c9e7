"""What the fork server loads: all of torch that a life needs, put where the garbage collector does not look.

A life then starts in hundredths of a second, as a copy of this process; nothing of a run is in it yet.
"""

import gc
import os

import torch
import torch.utils.data

import loadsheet.run.loop  # noqa: F401
from loadsheet.run import provenance
from torture import programs


def warm() -> None:
    """The first use of each part loads more of torch."""
    torch.set_num_threads(1)  # no other thread may exist in a process that forks
    provenance.machine(), provenance.packages()  # the same for every life
    model = programs.Net()
    ids = torch.zeros(1, 8, dtype=torch.long)
    for make in programs.OPTIMIZERS.values():
        optimizer = make(model.parameters())
        torch.nn.functional.cross_entropy(model(ids)[0], ids[0]).backward()
        optimizer.step()
    for schedule in programs.SCHEDULERS.values():
        schedule(programs.OPTIMIZERS["sgd"](model.parameters()), 9)


if "TORTURE_SERVER" in os.environ:  # a mere look at this module, for doctests say, must not do this
    warm()
    gc.collect()
    gc.freeze()
