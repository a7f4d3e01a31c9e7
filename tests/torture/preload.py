"""What the fork server loads: all of torch that a life needs, put where the garbage collector does not look.

A life then starts in hundredths of a second, as a copy of this process; nothing of a run is in it yet.
"""

import gc
import os

import torch
import torch.utils.data

import loadsheet as ls
import loadsheet.run.loop
from loadsheet.run import moving, provenance
from torture import programs


def warm() -> None:
    """The first use of each part loads more of torch."""
    torch.set_num_threads(1)  # no other thread may exist in a process that forks
    ls.deterministic(0, threads=1)
    moving.Watch._look = lambda self: None  # type: ignore[method-assign]  # it warns, and takes longer than a life
    provenance.machine(), provenance.packages()  # the same for every life
    model = programs.Net()
    ids = torch.zeros(1, 8, dtype=torch.long)
    for make in programs.OPTIMIZERS.values():
        optimizer = make(model.parameters())
        torch.nn.functional.cross_entropy(model(ids)[0], ids[0]).backward()
        optimizer.step()
    for schedule in programs.SCHEDULERS.values():
        schedule(programs.OPTIMIZERS["sgd"](model.parameters()), 9)


def warm_compiler() -> None:
    """What `torch.compile` makes of the model: lives find it in this process, and only cold ones on the disk."""
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1  # no pool of processes in a process that forks
    for amp in (False, True):
        for batch in (4, 2):  # the last one of an epoch is smaller
            ids = torch.zeros(batch, 8, dtype=torch.long)
            with torch.autocast("cpu", torch.bfloat16, enabled=amp):
                logits = torch.compile(programs.Net())(ids)
            torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids.flatten()).backward()


if "TORTURE_SERVER" in os.environ:  # a mere look at this module, for doctests say, must not do this
    warm()
    if os.environ["TORTURE_SERVER"] == "compiled":
        warm_compiler()
    gc.collect()
    gc.freeze()
