"""pause: wait for a time, or for a person."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar

from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.modules.program_run import now
from crossgrade.playbook.arguments import argument

_TICK = 1.0  # seconds between two words on the progress line
_UNATTENDED = "Not waiting for response to prompt as stdin is not interactive"


@dataclass(frozen=True)
class Arguments:
    """Waits for seconds or minutes, else until somebody presses Enter. Where nobody is at a terminal, it goes on."""

    seconds: int | None = argument(doc="How long; at least one second.", default=None)
    minutes: float | None = argument(doc="How long, in minutes.", default=None)
    prompt: str | None = argument(doc="What to say meanwhile.", default=None)
    echo: bool = argument(doc="Whether what is typed can be seen.", default=True)
    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (("minutes", "seconds"),)


@dataclass(frozen=True)
class State:
    """`seconds` to wait, None: for a person. `attended` says whether one can answer."""

    seconds: int | None
    attended: bool


def inspect(arguments: Arguments, host: HostView) -> State:  # noqa: ARG001 (the contract's shape)
    seconds = arguments.seconds
    if arguments.minutes is not None:
        seconds = int(arguments.minutes * 60)
    return State(None if seconds is None else max(1, seconds), _attended())


def _attended() -> bool:
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def plan(arguments: Arguments, state: State) -> Plan:
    if state.seconds is not None:
        summary = f"wait {state.seconds} s"
    elif state.attended:
        summary = f"wait for a person: {arguments.prompt or 'press Enter'}"
    else:
        summary = "go on: nobody is at a terminal"
    return Change(summary, values_known=False, payload={"state": state})


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:
    state: State = change.payload["state"]
    values: dict[str, Any] = {"user_input": "", "echo": arguments.echo, "rc": 0, "stderr": ""}
    begun, started = now(), time.monotonic()
    if state.seconds is not None:
        deadline = started + state.seconds
        while (left := deadline - time.monotonic()) > 0:
            context.progress(f"{arguments.prompt or 'pausing'} ({left:.0f} s left)")
            time.sleep(min(_TICK, left))
    elif state.attended:
        values["user_input"] = _ask(arguments)
    else:
        values["warnings"] = [_UNATTENDED]
    seconds = time.monotonic() - started
    waited = f"{round(seconds, 2)} seconds" if arguments.seconds is not None else f"{round(seconds / 60, 2)} minutes"
    values |= {"start": str(begun), "stop": str(now()), "delta": int(seconds), "stdout": f"Paused for {waited}"}
    return Outcome(values)


def _ask(arguments: Arguments) -> str:
    """What the person typed. End of file counts as Enter."""
    prompt = f"{arguments.prompt or 'Press Enter to go on, Ctrl-C to stop the run'}: "
    if not arguments.echo:
        import getpass

        try:
            return getpass.getpass(prompt)
        except EOFError:
            return ""
    sys.stderr.write(prompt)
    sys.stderr.flush()
    return sys.stdin.readline().rstrip("\n")


MODULE = Module(
    name="pause",
    arguments=Arguments,
    effect="checks",
    inspect=inspect,
    plan=plan,
    apply=apply,
    proves_itself=False,
    summary="Wait for a time, or for a person.",
)
