"""drain: stop the working server once its requests are done, and start it again when the run goes back.

`systemctl stop` alone cuts them off: it sends SIGTERM to every process of the service, and SGLang's schedulers have no
handler for it (`knowledge/servers.yml`). So the requests are waited for first, and the unit is stopped then.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan, Unchanged
from crossgrade.playbook.arguments import argument

LOOK_SECONDS = 30.0
START_SECONDS = 120.0
PAUSE_SECONDS = 0.2
CLOSED_AT = "closed_at"  # since when it takes no new request: seconds since the Epoch
_STOPPED = ("inactive", "failed")


@dataclass(frozen=True)
class Arguments:
    """Waits until the server's requests are done, or `timeout` is over; then stops the unit, until its port is free."""

    unit: str = argument(doc="The systemd service of the working server.")
    port: int = argument(doc="The TCP port that it serves on.")
    host: str = argument(doc="The address that it is asked at.", default="127.0.0.1")
    user_unit: bool = argument(doc="Whether it is a service of the user's own systemd.", default=False)
    timeout: float = argument(doc="Seconds that requests may take to finish; then they are cut off.", default=300.0)
    stop_timeout: float = argument(
        doc="Seconds that the unit may take to stop after that, and its port to be free.", default=120.0
    )
    signal: Literal["auto", "never"] = argument(
        doc="`auto`: a server that finishes its requests and ends after a SIGTERM to its main process (SGLang) gets "
        "one, so that a balancer that asks for its health sends it no more. `never`: it is only waited for.",
        default="auto",
    )


@dataclass(frozen=True)
class State:
    """`active` is systemd's word for the unit, `listener` names who listens on the port, "" for nobody."""

    active: str
    listener: str


def inspect(arguments: Arguments, host: HostView) -> State:
    """Raises TaskError when systemd cannot be asked, or does not know the unit."""
    from crossgrade.bench.health_looks import listener
    from crossgrade.process import StartError

    argv = _systemctl(arguments.user_unit, "show", "--property=LoadState,ActiveState", "--", arguments.unit)
    try:
        completed = host.run(argv, timeout=LOOK_SECONDS)
    except StartError as error:
        raise TaskError(f"{arguments.unit} cannot be looked at: {error.message}") from error
    said = dict(line.partition("=")[::2] for line in completed.stdout.splitlines())
    if not completed.succeeded or said.get("LoadState") == "not-found":
        words = completed.stderr.strip() or "there is no such unit"
        raise TaskError(f"{arguments.unit}: {words}", remedy="`unit` names the systemd service of the working server")
    return State(said.get("ActiveState", ""), listener(arguments.port))


def plan(arguments: Arguments, state: State) -> Plan:
    if state.active in _STOPPED:
        if state.listener:
            raise TaskError(
                f"{arguments.unit} is {state.active}, and {state.listener} listens on port {arguments.port}",
                remedy="stop that, or name the unit that started it",
            )
        return Unchanged(f"{arguments.unit} is {state.active}", {"requests": 0, "cut_off": 0, "seconds": 0.0})
    return Change(
        f"stop {arguments.unit} once its requests are done, after {arguments.timeout:g} s at the latest",
        values_known=False,
    )


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    from crossgrade.bench.draining import in_flight, wait_until_idle
    from crossgrade.bench.health_looks import listener

    record: dict[str, JSON] = {"unit": arguments.unit, "user_unit": arguments.user_unit}
    again = " ".join(_systemctl(arguments.user_unit, "start", arguments.unit))
    with context.step(f"stop {arguments.unit}", record, by_hand=[again]):
        _keep_settings(arguments, context)
        serving = listener(arguments.port)
        found = in_flight(arguments.host, arguments.port)
        closed_at = time.time()
        signalled = _let_it_finish(arguments, found.engine, serving, context)
        drained = wait_until_idle(
            lambda: in_flight(arguments.host, arguments.port, found.path),
            lambda: listener(arguments.port) == serving != "",
            arguments.timeout,
            context.progress,
        )
        closed_at = closed_at if signalled else time.time()
        _stop(arguments, context)
    cut_off = drained.left if drained.why == "deadline" else 0
    message = {
        "idle": f"{_requests(drained.first)} finished within {drained.seconds:.1f} s",
        "ended": f"it finished and ended by itself within {drained.seconds:.1f} s",
        "deadline": f"{_requests(drained.left)} not finished within {arguments.timeout:g} s: cut off",
        "untold": "it does not tell how many requests it has: none was waited for",
    }[drained.why]
    values = {
        "requests": drained.first,
        "cut_off": cut_off,
        "seconds": round(drained.seconds, 3),
        "ended_by": drained.why,
        "told_by": found.path,
        "signalled": signalled,
        CLOSED_AT: closed_at,
    }
    return Outcome(values, message=f"{arguments.unit} is stopped; {message}")


def undo(record: Mapping[str, JSON], context: ApplyContext) -> str:
    """Start the unit again; one that runs stays as it is."""
    unit = str(record["unit"])
    completed = context.run(_systemctl(bool(record["user_unit"]), "start", unit), timeout=START_SECONDS)
    if not completed.succeeded:
        raise TaskError(f"{unit} does not start again: {completed.outcome()}: {completed.stderr.strip()}")
    return f"started {unit} again"


def _keep_settings(arguments: Arguments, context: ApplyContext) -> None:
    """What the working server says of itself, kept with the generation that it runs from."""
    from crossgrade.modules.server import keep_server_info

    keep_server_info(f"http://{arguments.host}:{arguments.port}", context.store.active(), context)


def _let_it_finish(arguments: Arguments, engine: str, serving: str, context: ApplyContext) -> bool:
    """Send SIGTERM to the process that serves, where it is known to finish first. True when it was sent."""
    from crossgrade.bench.draining import ends_when_done

    process = re.match(r"pid (\d+) since", serving)
    if arguments.signal == "never" or process is None or not ends_when_done(engine):
        return False
    context.progress(f"SIGTERM to process {process[1]}: it finishes its requests and ends")
    try:
        os.kill(int(process[1]), signal.SIGTERM)
    except OSError as error:
        context.progress(f"process {process[1]} cannot be sent SIGTERM: {error.strerror}")
        return False
    return True


def _stop(arguments: Arguments, context: ApplyContext) -> None:
    """Stop the unit. Raises TaskError when systemd cannot, or somebody still listens on the port."""
    from crossgrade.bench.health_looks import listener

    deadline = time.monotonic() + arguments.stop_timeout
    argv = _systemctl(arguments.user_unit, "stop", arguments.unit)
    completed = context.run(argv, timeout=arguments.stop_timeout, log_name="drain.log")
    if not completed.succeeded:
        words = completed.stderr.strip() or completed.stdout.strip()
        raise TaskError(f"{arguments.unit} does not stop: {completed.outcome()}" + (f": {words}" if words else ""))
    while serving := listener(arguments.port):
        if time.monotonic() >= deadline:
            raise TaskError(f"{arguments.unit} is stopped, and {serving} listens on port {arguments.port}")
        time.sleep(PAUSE_SECONDS)


def _requests(number: int | None) -> str:
    return f"{number} request{'' if number == 1 else 's'}"


def _systemctl(user: bool, *arguments: str) -> list[str]:
    return ["systemctl", *(["--user"] if user else []), "--no-ask-password", *arguments]


MODULE = Module(
    name="drain",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    summary="Stop the working server once its requests are done.",
)
