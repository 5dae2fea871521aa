"""What the journal holds, as plain data, and what can be read from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from crossgrade.jsontype import JSON

# running: under way, or interrupted when nobody holds the lock; rolling back: the same, after its failure was seen;
# interrupted: it was killed, and recovery has made its unfinished steps whole or taken them back
RunState = Literal["running", "rolling back", "done", "failed", "rolled back", "rollback failed", "interrupted"]
StepState = Literal["intended", "done", "undone"]
OPEN_STATES: tuple[RunState, ...] = ("running", "rolling back")


@dataclass(frozen=True)
class RunRecord:
    """One run. `request` is what it was asked (playbook, variables, options). Times in seconds since 1970."""

    id: str
    command: str
    state: RunState
    started: float
    ended: float | None
    request: Mapping[str, Any]
    exit_code: int | None
    summary: str


@dataclass(frozen=True)
class StepRecord:
    """One journaled effect of a run. `time` is that of its newest state, in seconds since 1970."""

    run: str
    ordinal: int
    task: str
    name: str
    module: str
    intent: str
    undo: Mapping[str, JSON]
    by_hand: Sequence[str]
    state: StepState
    time: float = 0.0


@dataclass(frozen=True)
class Activation:
    """One turn of the active link, in order of time."""

    run: str
    previous: int | None
    active: int | None
    time: float


def checksum(table: str, values: Sequence[Any]) -> str:
    """The checksum of a row: 128 bits of sha256 over its table and columns, in hex."""
    return sha256(json.dumps([table, *values]).encode()).hexdigest()[:32]


def predecessor_of(active: int, activations: Sequence[Activation]) -> int | None:
    """The generation that was active before this one came to be, or None: where `rollback` without `--to` goes.

    A rollback undoes an activation, so it takes that pair from the stack: after 1 → 2 → 3 and two
    rollbacks the answer for 1 is None, not 2.
    """
    stack: list[int] = []
    for turn in activations:
        if turn.active is None:
            stack.clear()
        elif turn.active in stack:
            del stack[stack.index(turn.active) + 1 :]
        else:
            stack.append(turn.active)
    if active not in stack:
        return None
    position = stack.index(active)
    return stack[position - 1] if position else None
