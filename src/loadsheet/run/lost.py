"""Whether a run without checkpoints is a new one, or one that has lost them.

To begin at step 0, without a word, where a thousand steps were done is to throw them away.
"""

from __future__ import annotations

from pathlib import Path

from loadsheet.run.directory import read_done
from loadsheet.run.errors import NoCheckpoint
from loadsheet.run.reading import read_events
from loadsheet.run.stored import StoredCheckpoints


def nothing_saved(path: Path, store: StoredCheckpoints) -> bool:
    """Whether no checkpoint of the run at `path` was ever complete.

    Records alone do not tell: a run may be killed before its first checkpoint, `step-0`, is durable. Raises
    NoCheckpoint if there was one, and none is there any more.
    """
    if store.steps():
        return False
    done = read_done(path)
    found = [] if done is None else [f"done.json with {done} steps"]
    made = set()
    if (path / "log.jsonl").exists():
        for event in read_events(path):
            step = event.get("from" if event["event"] == "resume" else "step")
            if isinstance(step, int) and (
                event["event"] == "checkpoint" or (event["event"] == "resume" and step)
            ):
                made.add(step)
    if made:
        found.append(f"a log that speaks of checkpoint {max(made)}")
    if torn := store.torn():
        found.append(f"damaged ones set aside ({', '.join(torn[:3])})")
    if not found:
        return True
    raise NoCheckpoint(
        f"checkpoints in {path / 'checkpoints'}: got none, but {' and '.join(found)}; expected one to go on from",
        f"put them back, from the mirror say; or, to begin at step 0, remove `{path}`",
    )
