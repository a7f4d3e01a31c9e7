"""A sheet carried to an engine that runs jobs: Slurm, Kubernetes, dstack, SkyPilot.

`read_facts` takes from a sheet what a job needs, `make_job` decides what the job asks for and says of each
entry where it comes from, `render` writes the file. Nothing here talks to an engine.
"""

from __future__ import annotations

from loadsheet.cloud.export.decide import make_job
from loadsheet.cloud.export.facts import Facts, read_facts
from loadsheet.cloud.export.job import ENGINES, DoesNotFit, Job, Wish
from loadsheet.cloud.export.write import render, write

__all__ = ["ENGINES", "DoesNotFit", "Facts", "Job", "Wish", "make_job", "read_facts", "render", "write"]
