"""For how long nothing was served, as far as the events of a run tell. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from crossgrade.modules.activate import HEALTHY_AT, RESTARTED_AT
from crossgrade.modules.drain import CLOSED_AT


@dataclass(frozen=True)
class Downtime:
    """`seconds` is None where it is not known; `reason` says from what to what it goes, or why it is not known."""

    seconds: float | None
    reason: str


def downtime_of(tasks: Iterable[Mapping[str, Any]], *, ended_well: bool) -> Downtime:
    """From the stop of the old server (or, without one, its restart) to the first look that found the new one healthy.

    `tasks` are the events `task_result` in their order. The stop is a `drain`, from when the server took no new
    request, or a task that runs `systemctl stop`; what a person stopped by hand no event tells. After a failure the
    old server is started again, and no event tells when it was healthy.
    """
    stopped_at: float | None = None
    restarted_at: float | None = None
    healthy_at: float | None = None
    for task in tasks:
        if _stops_a_unit(task):
            began = float(task.get("time", 0.0)) - float(task.get("seconds", 0.0))
            stopped_at = began if stopped_at is None else stopped_at
        values = task.get("values")
        if task.get("module") == "drain" and isinstance(values, Mapping):
            closed_at = _number(values.get(CLOSED_AT), None)
            stopped_at = closed_at if stopped_at is None else stopped_at
        if task.get("module") == "activate" and isinstance(values, Mapping):
            restarted_at = _number(values.get(RESTARTED_AT), restarted_at)
            healthy_at = _number(values.get(HEALTHY_AT), healthy_at)
    began_at = restarted_at if stopped_at is None else stopped_at
    what = "the restart" if stopped_at is None else "the stop of the old server"
    if began_at is None:
        return Downtime(None, "no event tells that crossgrade stopped or restarted a server")
    if not ended_well:
        return Downtime(None, f"no event tells when the old server was healthy again after {what}")
    if healthy_at is None:
        return Downtime(None, "nothing looked at the health of the new server (`healthy` of `activate`)")
    return Downtime(max(0.0, healthy_at - began_at), f"from {what} to the first look that found the new one healthy")


def _stops_a_unit(task: Mapping[str, Any]) -> bool:
    values = task.get("values")
    if task.get("module") != "command" or task.get("status") == "skipped" or not isinstance(values, Mapping):
        return False
    words = values.get("cmd")
    if not isinstance(words, list) or not words or str(words[0]).rpartition("/")[2] != "systemctl":
        return False
    return next((word for word in map(str, words[1:]) if not word.startswith("-")), "") == "stop"


def _number(value: Any, otherwise: float | None) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else otherwise
