"""systemd_service: what state a unit is in, whether it starts at boot, whether it is masked.

systemctl(1) is asked before (`show`) and after; it does the work. What can be taken back is taken back: state,
enablement and mask. A restart cannot: what runs then has read its new files, and the old ones come back later.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import ApplyContext, Change, Difference, HostView, Module, Outcome, Plan, Unchanged
from crossgrade.playbook.arguments import argument
from crossgrade.process import Completed, StartError

CONTROL_SECONDS = 600.0  # systemd gives up on a unit by its own TimeoutStartSec long before
_RUNNING = ("active", "activating", "reloading")
_ENABLED = ("enabled", "enabled-runtime", "linked", "linked-runtime", "alias", "static", "indirect", "generated")
_FOLDERS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system", "/run/systemd/system")
_SUFFIX = re.compile(r"\.(service|socket|device|mount|automount|swap|target|path|timer|slice|scope)$")
_VERBS = {"started": "start", "stopped": "stop", "restarted": "restart", "reloaded": "reload"}
WORDS = {"start": "started", "stop": "stopped", "restart": "restarted", "reload": "reloaded"}
Scope = Literal["system", "user", "global"]


@dataclass(frozen=True)
class Arguments:
    """Starts, stops, restarts, enables or masks a unit. A restart is not taken back when the run fails later."""

    name: str | None = argument(doc="The unit; without a suffix a service.", default=None, aliases=("service", "unit"))
    state: Literal["started", "stopped", "restarted", "reloaded"] | None = argument(
        doc="`started` and `stopped` do nothing when it is so; `reloaded` starts what does not run.", default=None
    )
    enabled: bool | None = argument(doc="Whether it starts at boot.", default=None)
    masked: bool | None = argument(doc="Whether nothing may start it.", default=None)
    daemon_reload: bool = argument(
        doc="Let systemd read its unit files again before.", default=False, aliases=("daemon-reload",)
    )
    daemon_reexec: bool = argument(
        doc="Let systemd start itself anew before.", default=False, aliases=("daemon-reexec",)
    )
    scope: Scope = argument(doc="The system's systemd, or the user's own.", default="system")
    force: bool = argument(doc="Let enabling replace links that stand in the way.", default=False)
    no_block: bool = argument(doc="Do not wait until it is done.", default=False)
    required_one_of: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("state", "enabled", "masked", "daemon_reload", "daemon_reexec"),
    )


@dataclass(frozen=True)
class State:
    """What systemctl says of the unit: `properties` are those of `systemctl show`; none without a unit.

    `foreseen` is true in a plan for a unit whose file an earlier task makes. `enabled` is systemctl's word.
    """

    unit: str
    properties: Mapping[str, str] = field(default_factory=dict)
    enabled: str = ""
    foreseen: bool = False

    @property
    def active(self) -> str:
        return self.properties.get("ActiveState", "inactive")

    @property
    def masked(self) -> bool:
        return self.properties.get("LoadState") == "masked" or self.enabled.startswith("masked")


@dataclass(frozen=True)
class Call:
    """One call of systemctl: its words, and those that take it back, () where nothing does."""

    words: tuple[str, ...]
    back: tuple[str, ...] = ()


# ---- looking


def inspect(arguments: Arguments, host: HostView) -> State:
    require_systemd()
    if arguments.name is None:
        given = [name for name in ("state", "enabled", "masked") if getattr(arguments, name) is not None]
        if given:
            raise TaskError(f"`{given[0]}` needs the `name` of a unit")
        return State("")
    unit = unit_name(arguments.name)
    if arguments.scope == "global" and arguments.state is not None:
        raise TaskError("`scope: global` is for `enabled` and `masked` only: no systemd runs for all users")
    answer = ask(["show", "--", unit], arguments.scope, host)
    if not answer.succeeded:
        raise TaskError(f"systemctl show {unit}: {last_words(answer)}")
    properties = parse_show(answer.stdout)
    if properties.get("LoadState") == "not-found":
        if any(host.predicted("path", f"{folder}/{unit}") is not None for folder in _FOLDERS):
            return State(unit, foreseen=True)
        if arguments.scope != "global":
            raise TaskError(
                f"there is no unit {unit}",
                remedy="Look at the name, and say `daemon_reload: true` when its file has just been made.",
            )
    enabled = ask(["is-enabled", "--", unit], arguments.scope, host).stdout.strip()
    return State(unit, properties, enabled)


def require_systemd() -> None:
    """Raises TaskError where no systemd is at work (sd_booted(3))."""
    if not Path("/run/systemd/system").is_dir():
        raise TaskError(
            "systemd does not run this machine (there is no /run/systemd/system)",
            remedy="Inside a container services are processes: use `server`, or `command` with what starts them here.",
        )


def unit_name(name: str) -> str:
    """With the suffix `.service` where there is none. Raises TaskError for what is no name of one unit."""
    if not name or name.startswith("-") or re.search(r"[\s\0/]", name):
        raise TaskError(f"{name!r} is no name of a unit")
    if re.search(r"[*?\[]", name):
        raise TaskError(f"{name!r} stands for several units", remedy="Name one, or use a loop.")
    return name if _SUFFIX.search(name) else f"{name}.service"


def parse_show(text: str) -> dict[str, str]:
    """The properties that `systemctl show` prints: `Name=value` lines; a value in braces may have several."""
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        key, sign, value = line.partition("=")
        if name and found[name].count("{") > found[name].count("}"):
            found[name] += "\n" + line
        elif sign and key.isidentifier():
            name = key
            found[name] = value
    return found


def systemctl(scope: Scope, words: Sequence[str]) -> list[str]:
    where = {"system": [], "user": ["--user"], "global": ["--global"]}[scope]
    return ["systemctl", *where, "--no-ask-password", *words]


def surroundings(scope: Scope, environment: Mapping[str, str]) -> dict[str, str]:
    """What systemctl needs beside the task's environment: the way to the user's own systemd."""
    if scope != "user" or environment.get("XDG_RUNTIME_DIR"):
        return {"LC_ALL": "C"}
    return {"LC_ALL": "C", "XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}"}


def ask(words: Sequence[str], scope: Scope, host: HostView) -> Completed:
    try:
        return host.run(systemctl(scope, words), environment=surroundings(scope, host.environment))
    except StartError as error:
        raise TaskError(f"systemctl cannot be started: {error}") from error


def last_words(answer: Completed) -> str:
    lines = [line.strip() for line in (answer.stderr or answer.stdout).splitlines() if line.strip()]
    return lines[-1] if lines else answer.outcome()


# ---- planning


def plan(arguments: Arguments, state: State) -> Plan:
    calls = calls_for(arguments, state)
    values = _values(arguments, state)
    preparing = [call for call in calls if call.words[0] in ("daemon-reload", "daemon-reexec")]
    differences = tuple(_differences(arguments, state, calls))
    if not calls:
        return Unchanged(f"{state.unit} is so already", values)
    summary = f"systemctl {'; '.join(shlex.join(call.words) for call in calls)}"
    if any(call.words[0] in ("restart", "reload") for call in calls):
        summary += " (not taken back)"
    payload = {"calls": tuple(calls), "state": state, "changed": len(preparing) < len(calls)}
    return Change(summary, differences, values, values_known=not state.foreseen, payload=payload)


def calls_for(arguments: Arguments, state: State) -> list[Call]:
    """What systemctl has to do, in order. Raises TaskError for what it would refuse."""
    calls = [Call(("daemon-reload",))] if arguments.daemon_reload else []
    calls += [Call(("daemon-reexec",))] if arguments.daemon_reexec else []
    unit = state.unit
    if not unit:
        return calls
    masked = state.masked
    if arguments.masked is not None and arguments.masked != masked:
        calls.append(
            Call(("mask", unit), ("unmask", unit)) if arguments.masked else Call(("unmask", unit), ("mask", unit))
        )
        masked = arguments.masked
    if masked and (arguments.state in ("started", "restarted", "reloaded") or arguments.enabled):
        raise TaskError(f"{unit} is masked: nothing may start it", remedy="Say `masked: false` as well.")
    enabled = state.enabled in _ENABLED
    if arguments.enabled is not None and arguments.enabled != enabled and not _fixed(state):
        force = ["--force"] if arguments.force else []
        on, off = ("enable", *force, unit), ("disable", unit)
        calls.append(Call(on, off) if arguments.enabled else Call(off, ("enable", unit)))
    calls += _state_calls(arguments, state)
    return calls


def _fixed(state: State) -> bool:
    """A unit without an [Install] section cannot be enabled or disabled; it counts as enabled."""
    return state.enabled in ("static", "indirect", "generated", "alias", "transient")


def _state_calls(arguments: Arguments, state: State) -> list[Call]:
    wanted, unit, running = arguments.state, state.unit, state.active in _RUNNING
    block = ["--no-block"] if arguments.no_block else []
    start, stop = ("start", *block, unit), ("stop", *block, unit)
    if wanted is None:
        return []
    if wanted == "stopped":
        return [Call(stop, ("start", unit))] if running or state.active == "deactivating" else []
    if not running:
        return [Call(start, ("stop", unit))]
    if wanted == "started":
        return []
    return [Call((_VERBS[wanted], *block, unit))]


def _values(arguments: Arguments, state: State) -> dict[str, Any]:
    values: dict[str, Any] = {"name": arguments.name}
    if state.unit:
        values["status"] = dict(state.properties)
    if arguments.enabled is not None:
        values["enabled"] = arguments.enabled
    if arguments.state is not None:
        values["state"] = {"restarted": "started", "reloaded": "started"}.get(arguments.state, arguments.state)
    return values


def _differences(arguments: Arguments, state: State, calls: Sequence[Call]) -> list[Difference]:
    found = []
    for call in calls:
        verb = call.words[0]
        if verb in ("mask", "unmask"):
            found.append(Difference(f"mask of {state.unit}", _said(state.masked), _said(verb == "mask")))
        elif verb in ("enable", "disable"):
            found.append(Difference(f"{state.unit} at boot", state.enabled or "unknown", f"{verb}d"))
        elif verb in WORDS:
            found.append(Difference(f"state of {state.unit}", state.active, arguments.state or WORDS[verb]))
    return found


def _said(yes: bool) -> str:
    return "masked" if yes else "not masked"


# ---- doing


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:
    state: State = change.payload["state"]
    calls: tuple[Call, ...] = change.payload["calls"]
    for call in calls:
        control(call, arguments.scope, context)
    if arguments.state not in (None, "stopped") and not arguments.no_block:
        require_running(state.unit, arguments.scope, context)
    return Outcome(change.values, changed=bool(change.payload["changed"]))


def control(call: Call, scope: Scope, context: ApplyContext) -> None:
    """Raises TaskError with what systemctl said."""
    argv = systemctl(scope, call.words)
    undo_record: dict[str, JSON] = {"scope": scope, "back": list(call.back)}
    by_hand = [shlex.join(systemctl(scope, call.back))] if call.back else []
    around = surroundings(scope, context.host.environment)
    with context.step(f"systemctl {shlex.join(call.words)}", undo_record, by_hand=by_hand):
        answer = context.run(argv, environment=around, timeout=CONTROL_SECONDS, log_name="systemctl.log")
        if not answer.succeeded:
            raise TaskError(
                f"systemctl {shlex.join(call.words)}: {last_words(answer)}",
                remedy="`systemctl status` and `journalctl -u` of the unit say more.",
            )


def require_running(unit: str, scope: Scope, context: ApplyContext) -> None:
    """systemctl is content when the process was started; one that failed at once shows here. Raises TaskError."""
    answer = ask(["show", "--property=ActiveState,Result,ExecMainStatus", "--", unit], scope, context.host)
    found = parse_show(answer.stdout)
    if found.get("ActiveState") == "failed":
        raise TaskError(
            f"{unit} was started and has failed ({found.get('Result')}, exit status {found.get('ExecMainStatus')})",
            remedy=f"See: journalctl -u {unit}",
        )


def undo(record: Mapping[str, JSON], context: ApplyContext) -> str:
    """Give back state, enablement or mask. Calling it twice does no harm: systemctl does what is not so already."""
    back = record.get("back")
    scope = record.get("scope")
    if not isinstance(back, list) or not back or scope not in ("system", "user", "global"):
        return ""
    words = [str(word) for word in back]
    where: Scope = "user" if scope == "user" else "global" if scope == "global" else "system"
    around = surroundings(where, context.host.environment)
    answer = context.run(systemctl(where, words), environment=around, timeout=CONTROL_SECONDS)
    if not answer.succeeded:
        raise TaskError(f"systemctl {shlex.join(words)}: {last_words(answer)}")
    return f"systemctl {shlex.join(words)}"


MODULE = Module(
    name="systemd_service",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    proves_itself=False,
    summary="A systemd unit: running, enabled, masked. A restart cannot be taken back.",
)
