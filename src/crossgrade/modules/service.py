"""service: a service by its name, whatever the service manager; here that is systemd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from crossgrade.errors import TaskError
from crossgrade.modules import systemd_service
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.playbook.arguments import argument


@dataclass(frozen=True)
class Arguments:
    """Starts, stops, restarts or enables a service. A restart is not taken back when the run fails later."""

    name: str = argument(doc="The service.")
    state: Literal["started", "stopped", "restarted", "reloaded"] | None = argument(
        doc="`started` and `stopped` do nothing when it is so; `reloaded` starts what does not run.", default=None
    )
    enabled: bool | None = argument(doc="Whether it starts at boot.", default=None)
    use: str = argument(doc="The service manager: auto, systemd or systemd_service.", default="auto")
    sleep: int | None = argument(
        doc="Accepted for Ansible's sake: systemd waits for a service by itself.", default=None
    )
    pattern: str | None = argument(doc="Accepted for Ansible's sake: systemd knows whether it runs.", default=None)
    runlevel: str = argument(doc="Accepted for Ansible's sake: systemd has none.", default="default")
    arguments: str = argument(doc="Accepted for Ansible's sake, as with systemd there.", default="", aliases=("args",))
    required_one_of: ClassVar[tuple[tuple[str, ...], ...]] = (("state", "enabled"),)


def _meant(arguments: Arguments) -> systemd_service.Arguments:
    return systemd_service.Arguments(name=arguments.name, state=arguments.state, enabled=arguments.enabled)


def inspect(arguments: Arguments, host: HostView) -> systemd_service.State:
    if arguments.use not in ("auto", "systemd", "systemd_service"):
        raise TaskError(f"`use: {arguments.use}` is not here", remedy="systemd is the only service manager it knows.")
    return systemd_service.inspect(_meant(arguments), host)


def plan(arguments: Arguments, state: systemd_service.State) -> Plan:
    return systemd_service.plan(_meant(arguments), state)


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:
    return systemd_service.apply(_meant(arguments), change, context)


MODULE = Module(
    name="service",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=systemd_service.undo,
    proves_itself=False,
    summary="A service: running, enabled at boot (by systemd). A restart cannot be taken back.",
)
