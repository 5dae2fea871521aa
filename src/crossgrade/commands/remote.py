"""`plan` and `upgrade` on hosts over SSH: each host's own crossgrade does the work, this one shows it.

This is the first station: crossgrade must be installed on the host already, in the same version, and the run
ends with the connection's help only as a viewport. Bringing itself to the host and attaching again come later.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from typing import Any

from crossgrade.commands.run_output import RunOutput
from crossgrade.engine.events import Event
from crossgrade.engine.prepare import Prepared
from crossgrade.engine.roster import CONTROLLER
from crossgrade.errors import CrossgradeError, ExitCode, HostUnreachableError, WrongOptionsError
from crossgrade.hosts.remote_run import run_remote
from crossgrade.hosts.ssh import open_connection, ssh_target
from crossgrade.playbook.inventory import Host
from crossgrade.playbook.secrets import any_known
from crossgrade.report.text import Line


def run_on_hosts(options: Mapping[str, Any], prepared: Prepared) -> int:
    """Run the command on one host after the other; stop at the first that fails. Returns the exit code.

    Raises WrongOptionsError when local hosts and hosts over SSH are mixed, or a saved plan is involved.
    """
    if len(prepared.remote_hosts) < len(prepared.hosts):
        raise WrongOptionsError(
            "this machine and hosts over SSH cannot be mixed in one run yet", remedy="Choose with --limit."
        )
    if options.get("plan") or options.get("out"):
        raise WrongOptionsError("saved plans work on this machine only yet", remedy="Run it on the host itself.")
    output = RunOutput(options)
    try:
        for host in prepared.hosts:
            try:
                code = _run_on(host, options, prepared, output)
            except HostUnreachableError as error:
                output.terminal.write([Line(f"unreachable: [{host.name}]: {error}", "failed")])
                return ExitCode.UNREACHABLE
            finally:
                output.terminal.close()
            if code:
                output.terminal.write([Line(f"{host.name}: exit code {code}", "failed")])
                return code
    finally:
        output.close()
    return ExitCode.DONE


def _run_on(host: Host, options: Mapping[str, Any], prepared: Prepared, output: RunOutput) -> int:
    target, terminal = ssh_target(host.name, host.settings), output.terminal
    with open_connection(target, on_retry=lambda message: terminal.write([Line(message, "warning")])) as connection:
        return run_remote(
            connection,
            remote_command(options, prepared, host),
            lambda line: _relay(line, host.name, options, output),
            on_stderr=lambda line: (
                terminal.write([Line(f"{host.name}: {line}", "faint")]) if options["verbose"] else None
            ),
            playbook=prepared.request.playbook,
            program=target.crossgrade_command,
            name=host.name,
        )


def remote_command(options: Mapping[str, Any], prepared: Prepared, host: Host) -> list[str]:
    """The command for the host's crossgrade, as an argument list; there the host is local and has its variables.

    Variables of the inventory have a lower precedence than those of -e; there both arrive by -e, so the
    playbook's own variables do not win over the inventory's as they would here. Connection variables stay.
    """
    request = prepared.request
    own = prepared.inventory.scope(host).flatten()
    inventory = {name: value for name, value in own.items() if not name.startswith("ansible_")}
    variables = {
        **inventory,
        **{name: answer for answers in request.answers.values() for name, answer in answers.items()},
        **request.extra_vars,
        "ansible_connection": "local",
        CONTROLLER: platform.node() or "another machine",
    }
    if any_known():
        raise WrongOptionsError(
            f"{host.name}: what ansible-vault has encrypted is not sent to hosts over SSH yet",
            remedy="Run crossgrade on the host itself, with the playbook, the vault and its password there.",
        )
    argv = [request.command, "-i", f"{host.name},", "-e", json.dumps(variables)]
    for option, tags in (("--tags", request.only_tags), ("--skip-tags", request.skip_tags)):
        if tags:
            argv += [option, ",".join(tags)]
    if options.get("root"):
        argv += ["--root", options["root"]]
    if request.confirm_within is not None:
        argv += ["--confirm-within", str(request.confirm_within)]
    argv += [
        f"--{name.replace('_', '-')}"
        for name in ("resume", "yes", "detailed_exitcode", "deep", "force_handlers")
        if options.get(name)
    ]
    return argv


def _relay(line: str, host: str, options: Mapping[str, Any], output: RunOutput) -> None:
    """Show an event of the host under the host's name. Raises CrossgradeError for what is no event."""
    try:
        value = json.loads(line)
        known = ("schema", "event", "sequence", "time", "host")
        data = {name: content for name, content in value.items() if name not in known}
        event = Event(value["event"], value["sequence"], value["time"], host, data)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CrossgradeError(f"{host}: its crossgrade sent a line that is no event: {line[:200]!r}") from error
    if options["json"]:
        output.write_event(json.dumps(event.to_json()))
    output.terminal(event)
