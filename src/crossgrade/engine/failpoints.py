"""Places where the fault tests let a run die. Nothing but them sets the variables that are looked at here.

CROSSGRADE_KILL_AT   the point to die at: `KIND:MODULE`, `KIND:TASK`, or either with `#N` for the Nth time
CROSSGRADE_KILL_LOG  a file that gets the name of every point that is passed, one per line

The points are the journal's own, so a module that is added later has them without anybody adding any. `TASK` is
the task's id in the plan (`plan --json` lists them). Death is SIGKILL to the whole process group, as a closed
container or an out-of-memory killer would do it.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Literal

Kind = Literal[
    "begun",  # the run is on record, nothing else
    "intended",  # a step's intent and undo are on record, its effect is not made
    "effect",  # the effect is made, not yet on record
    "done",  # and on record
    "undoing",  # an undo is about to be made
    "reversed",  # it is made, not yet on record
    "undone",  # and on record
    "completed",  # recovery has finished a step that was past its commit point
    "ending",  # everything is made, the run's end is not on record
    "ended",  # and on record
]

VARIABLES = ("CROSSGRADE_KILL_AT", "CROSSGRADE_KILL_LOG")
_passed: Counter[str] = Counter()


def pass_point(kind: Kind, module: str = "", task: str = "") -> None:
    """Pass a point: die there if this run is asked to. Costs two lookups otherwise."""
    wanted, log = os.environ.get("CROSSGRADE_KILL_AT"), os.environ.get("CROSSGRADE_KILL_LOG")
    if not wanted and not log:
        return
    names = [f"{kind}:{name}" for name in (task, module) if name] or [kind]
    for name in names:
        _passed[name] += 1
    if log:
        with open(log, "a", encoding="utf-8") as stream:  # noqa: PTH123 - appended to by one process after another
            stream.write(f"{names[0]}#{_passed[names[0]]}\n")
    if any(wanted in (name, f"{name}#{_passed[name]}") for name in names):
        os.killpg(0, signal.SIGKILL)
