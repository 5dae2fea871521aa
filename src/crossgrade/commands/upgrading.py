"""`plan` and `upgrade`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossgrade.commands.common import agreed, guarded, people, request_from, use_vault
from crossgrade.commands.prompting import with_answers
from crossgrade.commands.run_output import RunOutput
from crossgrade.engine.events import Events, Listener
from crossgrade.engine.journal import reading
from crossgrade.engine.plan import SavedPlan, load_plan, save_plan
from crossgrade.engine.planning import make_plan
from crossgrade.engine.prepare import Prepared, check_all_templates, prepare
from crossgrade.engine.records import RunRecord
from crossgrade.engine.recovery import way_out
from crossgrade.engine.request import Request
from crossgrade.engine.run import Refusal
from crossgrade.engine.run import upgrade as run_upgrade
from crossgrade.errors import CrossgradeError, ExitCode, WrongOptionsError
from crossgrade.inspect.machine import plan_basis
from crossgrade.playbook.model import walk
from crossgrade.report.records import JsonLines, RunReport
from crossgrade.report.run_log import RunLog
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line, plan_lines
from crossgrade.store.lock import read_holder

if TYPE_CHECKING:
    from crossgrade.engine.deep import Foresight

Options = Mapping[str, Any]


def plan_command(options: Options) -> int:
    """Plan, show it, save it when asked to. Exit codes: see `docs/cli.md`."""
    return guarded(lambda: _plan(options, request_from(options, "plan")))


def upgrade_command(options: Options) -> int:
    return guarded(lambda: _upgrade(options))


def _only_looks(options: Options, prepared: Prepared) -> bool:
    """Do what `--syntax-check` and `--list-tasks` ask for; True when one of them was given."""
    terminal = Terminal(people(options))
    if options.get("list_tasks"):
        for play, hosts in prepared.plays:
            terminal.write([Line(f"\nplay: {play.name} (hosts: {', '.join(host.name for host in hosts)})", "heading")])
            for section, steps in play.sections():
                for task in walk(steps):
                    tags = f"  TAGS: [{', '.join(task.tags)}]" if task.tags else ""
                    prefix = "" if section == "tasks" else f"{section}: "
                    terminal.write([Line(f"  {prefix}{task.display_name}  ({task.module}){tags}")])
        return True
    if options.get("syntax_check"):
        check_all_templates(prepared)
        terminal.write([Line(f"playbook: {prepared.request.playbook}: no fault found", "ok")])
        return True
    return False


def _remote(options: Options, prepared: Prepared) -> int | None:
    """Hand hosts over SSH to their own crossgrade; None when every host is this machine."""
    if not prepared.remote_hosts:
        return None
    from crossgrade.commands.remote import run_on_hosts

    return run_on_hosts(options, prepared)


def _plan(options: Options, request: Request) -> int:
    prepared = prepare(request)
    if _only_looks(options, prepared):
        return ExitCode.DONE
    prepared = with_answers(prepared)
    request = prepared.request
    remote = _remote(options, prepared)
    if remote is not None:
        return remote
    terminal = Terminal(people(options), verbosity=options["verbose"], show_diff=options["diff"])
    listeners: tuple[Listener, ...] = (_plan_progress(terminal),)
    if options["json"]:
        listeners += (JsonLines(sys.stdout),)
    events = Events("localhost", listeners)
    with _foresight(options, request, events) as foresight:
        planning = make_plan(prepared, events, plan_basis, notes=_notes(request), foresight=foresight)
        terminal.close()
    events.emit("plan", plan=planning.plan.to_json())
    _show_plan(terminal, planning.plan, options)
    if planning.failure:
        raise CrossgradeError(planning.failure, remedy="Nothing was changed.")
    if options.get("out"):
        save_plan(planning.plan, Path(options["out"]).expanduser())
        again = " and the same -e options" if request.extra_vars else ""
        terminal.write([Line(f"Saved: carry it out with `crossgrade upgrade --plan {options['out']}`{again}.")])
    if planning.plan.would_fail:
        first = planning.plan.would_fail[0]
        text = f"upgrade would fail at {first.name!r}, and roll back; {len(planning.plan.would_fail)} in all. "
        terminal.write([Line(f"{text}Nothing was changed.", "failed")])
        return ExitCode.WOULD_FAIL
    if options["detailed_exitcode"] and planning.plan.has_work:
        return 2
    return ExitCode.DONE


@contextmanager
def _foresight(options: Options, request: Request, events: Events) -> Iterator[Foresight | None]:
    """What `--deep` looks through, with its temporary folder; None without it."""
    if not options.get("deep"):
        yield None
        return
    from crossgrade.engine.deep import Foresight
    from crossgrade.engine.interrupt import interruptible
    from crossgrade.engine.space import IGNORE
    from crossgrade.store.scratch import scratch

    with interruptible(), scratch() as folder:
        yield Foresight(
            folder,
            lambda message: events.emit("task_progress", task="", message=message),
            lambda message: events.emit("warning", message=f"--deep: {message}"),
            ignore_space=bool(request.extra_vars.get(IGNORE)),
        )


def _plan_progress(terminal: Terminal) -> Listener:
    """Only the live line of a plan's walk, and its warnings: the plan itself is shown at the end."""
    kinds = {"task_progress", "warning"}
    return lambda event: terminal(event) if event.kind in kinds else None


def _show_plan(terminal: Terminal, plan: SavedPlan, options: Options) -> None:
    terminal.write(plan_lines(plan.to_json(), show_diff=options["diff"], all_tasks=options["verbose"] > 0))


def _interrupted(request: Request) -> RunRecord | None:
    """The run that was interrupted, if any; a run that is under way is none. Reads only."""
    path = request.store.journal_path
    if not path.exists() or read_holder(request.store.lock_path) is not None:
        return None
    with reading(path, in_use=False) as journal:
        return journal.unfinished()


def _notes(request: Request) -> tuple[str, ...]:
    """What a reader of the plan must know beside it: an interrupted run is settled before anything else."""
    interrupted = _interrupted(request)
    if interrupted is None:
        return ()
    return (
        f"run {interrupted.id} was interrupted: upgrade first takes back what it had begun and not finished, and "
        "completes what was past its commit point",
    )


def _upgrade(options: Options) -> int:
    saved = load_plan(Path(options["plan"]).expanduser()) if options["plan"] else None
    if saved is not None:  # a plan knows what it is for; extra variables it does not keep, they may be secret
        options = {**options, "playbook": options["playbook"] or saved.playbook, "root": options["root"] or saved.root}
        if saved.would_fail:
            gate = saved.would_fail[0]
            reason = gate.foreseen.reason if gate.foreseen else ""
            raise CrossgradeError(
                f"the saved plan says that {gate.name!r} would fail: {reason}",
                remedy="Mend the cause and make a new plan with `crossgrade plan --deep -o FILE`.",
            )
    request = request_from(options, "upgrade")
    if options["check"]:
        return _plan(options, request.with_command("plan"))
    if options["resume"]:
        request = _resumed(request)
    prepared = prepare(request)
    if _only_looks(options, prepared):
        return ExitCode.DONE
    prepared = with_answers(prepared)
    request = prepared.request
    remote = _remote(options, prepared)
    if remote is not None:
        return remote
    if saved is not None and saved.root != str(request.root):
        raise WrongOptionsError(
            f"the plan is for {saved.root}, not for {request.root}", remedy=f"Give --root {saved.root}."
        )
    output, report, log = RunOutput(options), RunReport(), RunLog()
    events = Events("localhost", (*output.listeners, report, log))
    try:
        ending = run_upgrade(
            request,
            events,
            plan_basis,
            lambda plan: _confirmed(options, output, plan),
            saved=saved,
            resume=options["resume"],
            show_plan=lambda plan: _show_plan(output.terminal, plan, options) if plan.has_work else None,
            write_report=report.write,
        )
        _write_page(request, report.run, output)
    except Refusal as refusal:
        _show_plan(output.terminal, refusal.plan, options)
        raise CrossgradeError(refusal.reason, remedy="Nothing was changed.") from refusal
    finally:
        output.close()
        log.close()
    return ending.exit_code


def _write_page(request: Request, run: str, output: RunOutput) -> None:
    """The page of a run that is over and has let go of the store. That it cannot be written changes no exit code."""
    from crossgrade.commands.reporting import PAGE_FILE, write_page

    if not run:  # it was stopped before it began
        return
    page = request.store.run_folder(run) / PAGE_FILE
    problem = write_page(page)
    said = (
        Line(f"[WARNING]: no page was written: {problem}", "warning") if problem else Line(f"  page: {page}", "faint")
    )
    output.terminal.write([said])


def _resumed(given: Request) -> Request:
    """The interrupted run's own request, with the extra variables of this command over its own."""
    interrupted = _interrupted(given)
    if interrupted is None:
        raise CrossgradeError(
            "there is no interrupted run to resume", remedy="`crossgrade status` shows what is there."
        )
    if interrupted.command != "upgrade":
        raise CrossgradeError(
            f"the interrupted run is a `{interrupted.command}`: there is nothing to resume",
            remedy=way_out(interrupted.command),
        )
    request = Request.from_journal(interrupted.request, given.extra_vars)
    if given.vault:
        request = replace(request, vault=given.vault)
    elif request.vault:
        use_vault(request.vault)
    return request if given.confirm_within is None else replace(request, confirm_within=given.confirm_within)


def _confirmed(options: Options, output: RunOutput, plan: SavedPlan) -> bool:
    output.check()
    changes = plan.count("change") + plan.count("may change")
    return agreed(options, f"Carry out this plan ({changes} changes, {plan.count('check')} checks)?")
