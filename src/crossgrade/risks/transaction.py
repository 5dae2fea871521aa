"""Risks of the order of an upgrade: no backup, no gate, gates that decide nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from crossgrade.playbook.argument_types import ConversionError, to_bool
from crossgrade.playbook.model import Block, walk
from crossgrade.risks.book import Book, Finding, LintTask, Rule, finding_at, is_any_gate, judges_candidate, texts

BACKUP = Rule(
    "backup-missing",
    "Without venv_backup there is no generation to go back to, and nothing that a benchmark could compare with.",
    "Write a task `venv_backup: {path: …}` before it; it does its work once and is `ok` ever after.",
)
GATE = Rule(
    "gate-missing",
    "What nobody has judged is activated: a library that is missing is found out by your users.",
    "Put gates between python_env and activate: abi_check, gpu_arch_check, smoke_check, server, benchmark.",
)
UNTRIED = Rule(
    "server-untried",
    "Files can be judged without running them, but only a start shows that the server starts.",
    "Put `server` before activate, and `benchmark` or `accuracy` where answers and speed count.",
)
LATE = Rule(
    "gate-after-activation",
    "When it fails, people have been served by what it refuses; that is what it was to prevent.",
    "Move it before activate. What must be seen afterwards is `activate: healthy`, which goes back by itself.",
)
IGNORED = Rule(
    "gate-ignored",
    "A gate whose failure is ignored decides nothing, and the report shows a verdict that nobody has listened to.",
    "Remove it. What may fail is told to the gate itself: `ignore`, `allowed_loss`, `on_not_run`.",
)
SKIPPABLE = Rule(
    "gate-skippable",
    "Where its condition is false the gate is skipped and the candidate is activated all the same.",
    "Give activate the same condition, or put both into one block with a `when`.",
)
NOT_RUN = Rule(
    "not-run-passes",
    "A gate that did not run did not pass; here the run goes on without it.",
    "Write `on_not_run: fail`, or a comment behind it that says why it may be missing.",
)
FLOOR = Rule(
    "benchmark-without-baseline",
    "An absolute floor says nothing about what was lost: a candidate that is a third slower can pass it.",
    "Leave `baseline` out, so that the old server is measured beside the new one; floors count besides.",
)
TOLERANT = Rule(
    "benchmark-tolerant",
    "A loss that large is seen by every user; the gate lets it pass.",
    "Give `allowed_loss` what you would accept knowingly, such as 0.05.",
)
STOPPED = Rule(
    "service-left-stopped",
    "When a task after it fails, the service stays down.",
    "Put the tasks of the window into a block, and the start of the service into its `always`.",
)
UNWATCHED = Rule(
    "activation-without-health",
    "The service is restarted on the candidate, and nothing looks whether it comes back.",
    "Give activate `healthy: {url: …}`: a service that does not become healthy is switched back.",
)

MOST_LOSS = 0.25


def check(book: Book) -> Iterator[Finding]:
    backed_up = False
    for _, tasks in book.plays:
        yield from _backup(tasks, backed_up=backed_up)
        backed_up = backed_up or any(task.module == "venv_backup" for task in tasks)
        yield from _activation(tasks)
    for task in book.tasks:
        yield from _gate(task)
        yield from _service(task)


def _is_candidate(task: LintTask) -> bool:
    return task.module == "python_env" and "path" not in task.task.arguments


def _backup(tasks: Sequence[LintTask], *, backed_up: bool) -> Iterator[Finding]:
    for task in tasks:
        if task.module == "venv_backup" or backed_up:
            return
        if task.module == "activate" or _is_candidate(task):
            yield task.finding(BACKUP, f"{task.module} without a backup before it")
            return


def _activation(tasks: Sequence[LintTask]) -> Iterator[Finding]:
    for at, task in enumerate(tasks):
        if task.module != "activate":
            continue
        since = max((n for n, one in enumerate(tasks[:at]) if _is_candidate(one)), default=0)
        gates = [one for one in tasks[since:at] if judges_candidate(one.module)]
        if not gates:
            yield task.finding(GATE, "activate without a gate before it")
        elif not any(one.module in ("server", "benchmark", "accuracy") for one in gates):
            yield task.finding(UNTRIED, "activate, and no gate before it has started the server")
        yield from (_skippable(gate, task) for gate in gates if _can_be_skipped(gate, task))
        if task.argument("restart") and task.argument("healthy") is None:
            yield task.finding(UNWATCHED, "activate restarts the service and does not look after it")
        until = next((n for n in range(at + 1, len(tasks)) if _is_candidate(tasks[n])), len(tasks))
        for late in tasks[at + 1 : until]:
            if judges_candidate(late.module):
                yield late.finding(LATE, f"{late.module} comes after activate")


def _can_be_skipped(gate: LintTask, activation: LintTask) -> bool:
    shared = {str(condition) for condition in activation.task.when}
    return any(str(condition) not in shared for condition in gate.task.when) or "never" in gate.task.tags


def _skippable(gate: LintTask, activation: LintTask) -> Finding:
    name = activation.task.display_name
    if "never" in gate.task.tags:
        return gate.finding(SKIPPABLE, f'{gate.module} has the tag `never`, and "{name}" has not', "tags", key=True)
    return gate.finding(SKIPPABLE, f'{gate.module} has a condition that "{name}" has not', "when", key=True)


def _true(value: Any) -> bool:
    try:
        return to_bool(value)
    except ConversionError:
        return value is not None  # a template: it may be true


def _gate(task: LintTask) -> Iterator[Finding]:
    if not (is_any_gate(task.module) or task.module in ("activate", "venv_backup")):
        return
    if task.task.ignore_errors is not None and _true(task.task.ignore_errors):
        yield task.finding(IGNORED, f"the failure of {task.module} is ignored", "ignore_errors", key=True)
    if any(condition is False or str(condition).lower() == "false" for condition in task.task.failed_when):
        yield task.finding(IGNORED, f"{task.module} can never fail", "failed_when", key=True)
    for block, section in zip(task.blocks, task.sections, strict=True):
        if section == "block" and block.rescue and is_any_gate(task.module) and not _ends(block):
            yield task.finding(IGNORED, f"the failure of {task.module} is rescued, and the play goes on")
            break
    yield from _policies(task)


def _ends(block: Block) -> bool:
    return any(task.module in ("fail", "assert", "meta") for task in walk(block.rescue))


def _policies(task: LintTask) -> Iterator[Finding]:
    policy = task.argument("on_not_run")
    if policy == "warn":
        spot = task.task.spot_of("arguments", "on_not_run")
        if not has_comment(spot.source.text, spot.place.line):
            yield task.finding(NOT_RUN, f"{task.module} may be missing", "arguments", "on_not_run")
    elif isinstance(policy, str):
        for name, value in task.play.vars.items():
            spot = task.play.spot_of("vars", name)
            named = policy.replace("{", " ").replace("}", " ").split()
            if value == "warn" and name in named and not has_comment(spot.source.text, spot.place.line):
                yield finding_at(NOT_RUN, f"`{name}` lets gates be missing", spot)
    if task.module == "benchmark":
        if task.argument("baseline") in ("none", "None"):
            yield task.finding(FLOOR, "a benchmark without a baseline", "arguments", "baseline")
        loss = task.argument("allowed_loss")
        if isinstance(loss, int | float) and loss >= MOST_LOSS:
            yield task.finding(TOLERANT, f"a loss of {loss:.0%} passes", "arguments", "allowed_loss")


def has_comment(text: str, line: int) -> bool:
    """Whether the line (from 1) ends in a comment that is no `noqa`, or the line above is one."""
    lines = text.splitlines()
    here = lines[line - 1] if 0 < line <= len(lines) else ""
    above = lines[line - 2].strip() if 1 < line <= len(lines) else ""
    behind = here.partition(" #")[2].strip()
    return bool(behind and not behind.startswith("noqa")) or (above.startswith("#") and "noqa" not in above)


def _service(task: LintTask) -> Iterator[Finding]:
    stopped = _stops(task)
    if not stopped or "always" in task.sections or task.handler:
        return
    for block in task.blocks:
        if any(_starts(one.module, one.arguments) for one in walk(block.always)):
            return
    yield task.finding(STOPPED, f"{stopped} is stopped, and no `always` starts it again")


def _stops(task: LintTask) -> str:
    """The service that a task stops, "" where it stops none."""
    words = [word for text in texts(task.task.arguments) for word in text.split()]
    if task.module in ("command", "shell") and "systemctl" in words and "stop" in words:
        return words[words.index("stop") + 1] if words[-1] != "stop" else "a service"
    if task.module in ("systemd", "systemd_service", "service") and task.argument("state") == "stopped":
        return str(task.argument("name", "unit") or "a service")
    return ""


def _starts(module: str, arguments: Any) -> bool:
    words = {word for text in texts(arguments) for word in text.split()}
    if module in ("command", "shell"):
        return "systemctl" in words and bool({"start", "restart"} & words)
    return module in ("systemd", "systemd_service", "service") and bool({"started", "restarted"} & words)
