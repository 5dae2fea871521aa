"""activate: point the active link at a generation, by one rename, and restart what runs from it.

This is the one point at which people and services change over; before it nothing that they use was touched.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossgrade.errors import StoreError, TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.candidate import drift_of
from crossgrade.modules.contract import (
    ApplyContext,
    Change,
    Difference,
    HostView,
    Module,
    Outcome,
    Plan,
    Prediction,
    Unchanged,
)
from crossgrade.modules.healthy import read_healthy, watch
from crossgrade.playbook.arguments import argument
from crossgrade.store.activation import switch
from crossgrade.store.confirmation import read_confirmation
from crossgrade.store.layout import Store

if TYPE_CHECKING:
    from crossgrade.bench.health_looks import Watched

RESTART_SECONDS = 600.0

# Values of the task, in seconds since 1970: a report tells from them for how long nothing was served.
RESTARTED_AT = "service_restarted_at"
HEALTHY_AT = "service_healthy_at"


@dataclass(frozen=True)
class Arguments:
    """Before the switch, the generation's files are compared with its manifest."""

    generation: int = argument(doc="The generation, as python_env returns it.")
    restart: tuple[str, ...] = argument(
        doc="A command, as a list, that restarts the service; it runs after the switch, and after switching back.",
        default=(),
    )
    healthy: Mapping[str, Any] = argument(
        doc="What the service must show after the switch, or the run fails and goes back: `url` (http, answers 200), "
        "`for` (seconds that it must stay healthy, 30), `every` (seconds between looks, 2), `start_timeout` (seconds "
        "until it is first healthy, 600), `failures` (failed looks in a row that count as down, 3), `max_restarts` (2; "
        "seen by the process that listens on the port) and `unit` (a systemd unit whose restarts count too).",
        default_factory=dict,
    )


@dataclass(frozen=True)
class State:
    store: Store
    active: int | None
    watched: Watched | None
    confirm_within: int | None


def inspect(arguments: Arguments, host: HostView) -> State:
    """Raises TaskError for a generation that is not there or is still being built."""
    known = {generation.number: generation for generation in host.generations()}
    generation = known.get(arguments.generation)
    if generation is None:
        there = ", ".join(str(number) for number in known) or "none"
        raise TaskError(
            f"there is no generation {arguments.generation} (there are: {there})",
            remedy='For what python_env built: generation: "{{ candidate.generation }}".',
        )
    if generation.state == "building":
        raise TaskError(f"generation {arguments.generation} is not complete", remedy="Let python_env build it anew.")
    return State(host.store, host.active(), read_healthy(arguments.healthy), host.confirm_within)


def plan(arguments: Arguments, state: State) -> Plan:
    number = arguments.generation
    link = state.store.active_link
    values = {"generation": number, "previous": state.active, "link": str(link) if link else None}
    if state.active == number:
        return Unchanged(f"generation {number} is active", {**values, "previous": None})
    before = str(state.store.venv(state.active)) if state.active is not None else ""
    summary = f"activate generation {number}"
    if arguments.restart:
        summary += f", then run {shlex.join(arguments.restart)}"
    if state.watched:
        summary += f", then watch {state.watched.url} for {state.watched.rules.stay:g} s"
    if state.confirm_within is not None:
        summary += f"; it goes back unless confirmed within {state.confirm_within} s"
    return Change(
        summary,
        (Difference(str(link or "the active link"), before, str(state.store.venv(number))),),
        values,
        predicts=(Prediction("active", "active", number),),
        payload={"watched": state.watched},
    )


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:
    store, number = context.store, arguments.generation
    previous, link = store.active(), store.active_link
    if previous is None or link is None:
        raise TaskError(
            "there is no active generation to switch from", remedy="Let venv_backup adopt the working venv first."
        )
    generation = store.generation(number)
    problem = drift_of(store, generation)
    if problem:
        raise TaskError(f"{problem}: it is not activated", remedy="Run again: python_env then builds it anew.")
    record: dict[str, JSON] = {
        "generation": number, "previous": previous, "state": generation.state, "restart": list(arguments.restart),
    }  # fmt: skip
    watched: Watched | None = change.payload["watched"]
    if watched:
        record["healthy"] = watched.to_json()
    back = [f"ln -sfn {store.venv(previous)} {link}", *([" ".join(arguments.restart)] if arguments.restart else [])]
    turned: dict[str, JSON] = {"previous": previous, "link": str(link)}
    with context.step(f"activate generation {number}", record, by_hand=back):
        if generation.state == "rejected":
            store.write_generation(generation.with_state("ready"))
        # The record and its watcher are there before the link turns: from then on the way back is certain.
        _arm(arguments, watched, previous, context)
        switch(store, number)
        context.record_activation(previous, number)
        # inside the step: a kill before it has ended must not leave the old software serving under the new link
        if arguments.restart:
            turned[RESTARTED_AT] = round(time.time(), 3)
        _restart(arguments.restart, context)
        if watched:
            context.progress(f"watching {watched.url}")
            turned[HEALTHY_AT] = round(watch(watched, context), 3)
    return Outcome({**change.values, **turned})


def _arm(arguments: Arguments, watched: Watched | None, previous: int, context: ApplyContext) -> None:
    """Start the dead-man switch when the run has one; without it, an earlier one must not meet this activation."""
    from crossgrade.store.watcher import arm, disarm

    within = context.host.confirm_within
    if within is None:
        disarm(context.store)
        return
    context.progress("starting what goes back unless confirmed")
    arm(
        context.store,
        run=context.run_id,
        generation=arguments.generation,
        previous=previous,
        within=within,
        restart=arguments.restart,
        health=watched.to_json() if watched else {},
    )


def _disarm(context: ApplyContext) -> None:
    """End the dead-man switch of this run. One that is going back this moment ends by itself."""
    try:
        confirmation = read_confirmation(context.store)
    except StoreError:  # damaged: it says nothing any more, and the link is back already
        pass
    else:
        if confirmation is None or confirmation.run != context.run_id or confirmation.returning:
            return
    from crossgrade.store.watcher import disarm

    disarm(context.store)


def _restart(command: Sequence[str], context: ApplyContext) -> None:
    if not command:
        return
    context.progress("restarting the service")
    completed = context.run(list(command), timeout=RESTART_SECONDS, log_name="restart.log")
    if not completed.succeeded:
        raise TaskError(
            f"the restart failed: {completed.outcome()}: {completed.stderr.strip() or completed.stdout.strip()}",
            remedy=f"The whole output is in {context.log_directory / 'restart.log'}.",
        )


def _restart_on_record(record: Mapping[str, JSON], context: ApplyContext) -> None:
    command = record.get("restart")
    _restart([str(word) for word in command] if isinstance(command, list) else [], context)


def undo(record: Mapping[str, JSON], context: ApplyContext) -> str:
    """Switch back if the link is at this generation; then restart, so that the old software serves again.

    The restart is done also when the link was not turned: after a kill nobody knows what the service runs.
    """
    store = context.store
    number, previous = int(str(record["generation"])), int(str(record["previous"]))
    switched = store.active() == number
    if switched:
        switch(store, previous)
        context.record_activation(number, previous)
    _disarm(context)
    if record.get("state") == "rejected" and store.folder(number).is_dir():
        store.write_generation(store.generation(number).with_state("rejected"))
    _restart_on_record(record, context)
    return f"switched back to generation {previous}" if switched else ""


def complete(record: Mapping[str, JSON], context: ApplyContext) -> str | None:
    """When the link is turned, the activation has happened: what is left of it is made good, the restart included."""
    store, number, previous = context.store, int(str(record["generation"])), int(str(record["previous"]))
    if store.active() != number:
        return None
    context.record_activation(previous, number)
    _restart_on_record(record, context)
    if record.get("healthy"):
        from crossgrade.bench.health_looks import Watched

        watch(Watched.from_json(record["healthy"]), context)
    return f"generation {number} is active"


MODULE = Module(
    name="activate",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    complete=complete,
    summary="Point the active link at a generation: one rename.",
)
