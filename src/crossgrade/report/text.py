"""Events to lines of text, in the shape that Ansible users know. Pure: no terminal is touched here."""

from __future__ import annotations

import difflib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossgrade.engine.events import Event

Style = str  # "" or one of: ok changed failed skipped check heading faint warning
WIDTH = 80

_STATUS_STYLE = {
    "ok": "ok",
    "changed": "changed",
    "change": "changed",
    "may change": "changed",
    "check": "check",
    "failed": "failed",
    "fails": "failed",
    "skipped": "skipped",
    "ignored": "skipped",
}
RECAP_FIELDS = ("ok", "changed", "unreachable", "failed", "skipped", "rescued", "ignored", "rolled_back")


@dataclass(frozen=True)
class Line:
    """One line (or several, joined by newlines) and how it is to look."""

    text: str
    style: Style = ""


def heading(kind: str, name: str) -> Line:
    """`TASK [name] ****`, filled up to 80 columns as Ansible does."""
    start = f"{kind} [{name}] " if name else f"{kind} "
    return Line("\n" + start + "*" * max(3, WIDTH - len(start)), "heading")


def render(event: Event, *, verbosity: int = 0, show_diff: bool = False) -> Iterator[Line]:
    """The lines for one event. Unknown kinds give nothing: an older reader meets a newer event."""
    renderer = _RENDERERS.get(event.kind)
    if renderer is not None:
        yield from renderer(event, verbosity, show_diff)


def _run_started(event: Event, verbosity: int, _: bool) -> Iterator[Line]:
    if verbosity:
        yield Line(f"run {event.data['run']}, store {event.data['store']}", "faint")


def _recovered(event: Event, *_: object) -> Iterator[Line]:
    yield Line(f"\n{event.data['message']}", "warning")


def _play(event: Event, *_: object) -> Iterator[Line]:
    yield heading("PLAY", event.data["play"])


def _section(event: Event, *_: object) -> Iterator[Line]:
    if event.data["section"] == "rollback":
        yield heading("ROLLBACK", "")


def _task_started(event: Event, *_: object) -> Iterator[Line]:
    kind = "RUNNING HANDLER" if event.data.get("handler") else "TASK"
    yield heading(kind, event.data["name"])


def _task_result(event: Event, verbosity: int, show_diff: bool) -> Iterator[Line]:
    data = event.data
    status: str = data["status"]
    style = _STATUS_STYLE.get(status, "")
    wanted = data.get("diff")
    if show_diff if wanted is None else wanted:
        yield from difference_lines(data.get("differences", ()))
    label = {"skipped": "skipping", "failed": "fatal", "ignored": "fatal"}.get(status, status)
    item = f" => (item={data['item']})" if data.get("item") else ""
    message: str = data.get("message", "")
    if status in ("failed", "ignored"):
        yield Line(f"{label}: [{event.host}]: FAILED!{item} => {message}", style)
        yield from verdict_lines(data.get("verdict"), verbosity)
        for explanation in data.get("explanations", ()):
            yield from explanation_lines(explanation, "    ")
        if status == "ignored":
            yield Line("...ignoring", "skipped")
    else:
        if data["module"] == "debug" and status in ("ok", "changed"):
            message = json.dumps(data["values"], indent=4, ensure_ascii=False, default=str)  # what debug is for
        yield Line(f"{label}: [{event.host}]{item}{f' => {message}' if message else ''}", style)
        yield from verdict_lines(data.get("verdict"), verbosity)
        yield from warning_lines(data.get("warnings", ()))
    if verbosity and data.get("values") and data["module"] != "debug":
        yield Line(json.dumps(data["values"], indent=2 if verbosity > 1 else None, default=str), "faint")


def verdict_lines(
    verdict: Mapping[str, Any] | None, verbosity: int, complete: str = "the report has them all"
) -> Iterator[Line]:
    """The evidence of a verdict: failures always, warnings too, notes only when asked for (-v)."""
    if not verdict:
        return
    shown = ["failure", "warning", *(["note"] if verbosity else [])]
    for level in shown:
        findings = [finding for finding in verdict["findings"] if finding["level"] == level]
        few = _few(findings)
        for finding in few:
            style = {"failure": "failed", "warning": "warning"}.get(level, "faint")
            message = str(finding["message"])
            fault = f"{finding['fault']}: " if finding.get("fault") else ""
            said = finding["subject"] in message and not fault
            subject = f"{finding['subject']}: " if finding["subject"] and not said else ""
            yield Line(f"    {level}: {fault}{subject}{message}", style)
        if len(findings) > len(few):
            yield Line(f"    and {len(findings) - len(few)} more of this kind; {complete}", "faint")


def _few(findings: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """As many as a screen takes; of faults with a name, some of each name."""
    shown, of_name = [], Counter[str]()
    for finding in findings:
        name = finding.get("fault", "")
        of_name[name] += 1
        if of_name[name] <= (3 if name and len(findings) > 12 else 12):
            shown.append(finding)
    return shown


def explanation_lines(explanation: Mapping[str, Any], indent: str = "") -> Iterator[Line]:
    """A known failure: what it is called, why it happens, which lines say so, what to do, and where more stands."""
    yield Line(f"{indent}known failure: {explanation['kind']}: {explanation['cause']}", "failed")
    for evidence in explanation["evidence"]:
        line = f"line {evidence['line']}: " if evidence["line"] is not None else ""
        yield Line(f"{indent}  evidence: {line}{evidence['text']}")
    more = explanation["count"] - len(explanation["evidence"])
    if more > 0:
        yield Line(f"{indent}  and {more} more {'line' if more == 1 else 'lines'} like it", "faint")
    yield Line(f"{indent}  remedy: {explanation['remedy']}", "check")
    for link in explanation["links"]:
        yield Line(f"{indent}  see: {link}", "faint")


def warning_lines(warnings: Sequence[Mapping[str, str]], indent: str = "    ") -> Iterator[Line]:
    """What a person should know before a plan is carried out; a remedy is said once for those that share it."""
    for place, warning in enumerate(warnings):
        yield Line(f"{indent}warning: {warning['name']}: {warning['message']}", "warning")
        if place + 1 == len(warnings) or warnings[place + 1]["remedy"] != warning["remedy"]:
            yield Line(f"{indent}  remedy: {warning['remedy']}", "check")


def difference_lines(differences: Sequence[Mapping[str, str]]) -> Iterator[Line]:
    """Before and after: a unified diff for texts of several lines, one line for the rest."""
    for difference in differences:
        before, after, subject = difference["before"], difference["after"], difference["subject"]
        if "\n" in before or "\n" in after:
            lines = difflib.unified_diff(
                before.splitlines(),
                after.splitlines(),
                f"before: {subject}",
                f"after: {subject}",
                lineterm="",
            )
            for line in lines:
                style = {"+": "ok", "-": "failed", "@": "check"}.get(line[:1], "")
                yield Line(line, style)
        else:
            why = f" ({difference['why']})" if difference.get("why") else ""
            yield Line(f"    {subject}: {before or '(absent)'} -> {after or '(absent)'}{why}", "changed")


def _prediction_differs(event: Event, *_: object) -> Iterator[Line]:
    data = event.data
    yield Line(
        f"[WARNING]: the plan foresaw `{data['predicted']}`, what happened was `{data['happened']}`. "
        f"This is a fault of the module: please report it.",
        "warning",
    )


def _rolled_back(event: Event, *_: object) -> Iterator[Line]:
    yield Line(f"rolled back: [{event.host}] => {event.data['name']}: {event.data['what']}", "changed")


def _completed(event: Event, *_: object) -> Iterator[Line]:
    yield Line(f"completed: [{event.host}] => {event.data['name']}: {event.data['what']}", "changed")


def _rollback_failed(event: Event, *_: object) -> Iterator[Line]:
    yield Line(f"fatal: [{event.host}]: ROLLBACK FAILED! => {event.data['name']}: {event.data['what']}", "failed")
    for command in event.data["by_hand"]:
        yield Line(f"    mend it by hand: {command}", "failed")


def _warning(event: Event, *_: object) -> Iterator[Line]:
    yield Line(f"[WARNING]: {event.data['message']}", "warning")


def recap_line(host: str, counts: Mapping[str, Any]) -> Line:
    """Ansible's recap line with `rolled_back=` at its end."""
    fields = " ".join(f"{name}={counts[name]!s:<4}" for name in RECAP_FIELDS).rstrip()
    bad = counts["failed"] or counts["unreachable"]
    return Line(f"{host:<26} : {fields}", "failed" if bad else "changed" if counts["changed"] else "ok")


def _recap(event: Event, *_: object) -> Iterator[Line]:
    if event.data.get("first", True):
        yield heading("PLAY RECAP", "")
    yield recap_line(event.host, event.data)


def _run_ended(event: Event, *_: object) -> Iterator[Line]:
    data = event.data
    code = data["exit_code"]
    yield Line("")
    if data.get("reason"):
        yield Line(f"{data['outcome']}: {data['reason']}", "failed" if code else "ok")
    else:
        yield Line(str(data["outcome"]), "failed" if code else "ok")
    for line in data.get("evidence", ()):
        yield Line(f"  evidence: {line}")
    yield Line(f"  working environment: {data['working_environment']}")
    if data.get("gates_not_run"):
        names = ", ".join(repr(name) for name in data["gates_not_run"])
        yield Line(f"  not run, and let pass by `on_not_run: warn`: {names}", "warning")
    if data.get("differs"):
        yield Line(f"  predictions that did not come true: {data['differs']}", "warning")
    if data.get("confirmation"):
        yield from confirmation_lines(data["confirmation"])
    if data.get("next_command"):
        yield Line(f"  next: {data['next_command']}")
    if data.get("report"):
        yield Line(f"  report: {data['report']}", "faint")


def confirmation_lines(confirmation: Mapping[str, Any]) -> Iterator[Line]:
    """What waits to be confirmed: until when, by which command, and what watches that it is."""
    generation, previous = confirmation["generation"], confirmation["previous"]
    left, when = max(0.0, confirmation["seconds_left"]), time.localtime(confirmation["deadline"])
    until = time.strftime("%Y-%m-%d %H:%M:%S", when)
    if confirmation["returning"]:
        line = f"{confirmation['returning']}: going back to generation {previous} was begun and is not finished"
        yield Line(f"  {line}", "failed")
    elif not confirmation["activated"]:
        yield Line(f"  generation {generation} would wait to be confirmed, but it is not active", "faint")
        return
    elif confirmation["due"]:
        text = f"not confirmed in time: generation {generation} should have gone back to {previous} at {until}"
        yield Line(f"  {text}; the next `crossgrade rollback`, `upgrade` or `confirm` does it", "failed")
    else:
        yield Line(f"  confirm within {left:.0f} s: {confirmation['command']}", "warning")
        yield Line(f"  otherwise generation {previous} is active again at {until}")
    if confirmation["problem"]:
        yield Line(f"  {confirmation['problem']}", "failed")
    yield Line(f"  {confirmation['limits']}", "faint")
    if confirmation["watcher"] is None:
        text = "what watched it has gone: when the time is over, the next crossgrade command that changes something"
        yield Line(f"  {text} goes back", "warning")


def foreseen_lines(foreseen: Mapping[str, Any] | None, verbosity: int) -> Iterator[Line]:
    """What a deep plan knows of a gate: its verdict beneath the task, with the evidence."""
    if not foreseen:
        return
    outcome = foreseen["outcome"]
    style = {"would pass": "ok", "would fail": "failed"}.get(outcome, "skipped")
    tolerated = f" (the run goes on: {foreseen['tolerated']})" if foreseen["tolerated"] else ""
    yield Line(f"      {outcome}: {foreseen['reason']}{tolerated}", style)
    for line in verdict_lines(foreseen["verdict"], verbosity, "--json has them all"):
        yield Line(f"    {line.text}", line.style)


def _warns(verdict: Mapping[str, Any] | None) -> bool:
    """Whether a gate has let the run go on, and has more to say than that."""
    return verdict is not None and any(finding["level"] == "warning" for finding in verdict["findings"])


def plan_lines(plan: Mapping[str, Any], *, show_diff: bool = True, all_tasks: bool = False) -> Iterator[Line]:
    """A plan for people: what will change and what will be checked, in order; the rest only when asked for."""
    signs = {"change": "~", "check": "?", "may change": "±", "fails": "!", "ok": "=", "skipped": "-"}
    for note in plan["notes"]:
        yield Line(f"note: {note}", "warning")
    for task in plan["tasks"]:
        action = task["action"]
        said = task.get("verdict")  # of a gate that only reads, and has
        if action in ("ok", "skipped") and not all_tasks and not _warns(said):
            continue
        item = f" (item={task['item']})" if task["item"] else ""
        yield Line(f"  {signs[action]} {task['name']}{item}", _STATUS_STYLE.get(action, ""))
        for line in str(task["summary"]).splitlines():
            yield Line(f"      {line}")
        if said and action == "ok":
            yield Line(f"      {said['outcome']}: {said['reason']}", "warning" if _warns(said) else "ok")
            for found in verdict_lines(said, int(all_tasks), "--json has them all"):
                yield Line(f"    {found.text}", found.style)
        yield from foreseen_lines(task.get("foreseen"), verbosity=int(all_tasks))
        if show_diff:
            yield from difference_lines(task["differences"])
        yield from warning_lines(task.get("warnings", ()), "      ")
    counts = {action: sum(task["action"] == action for task in plan["tasks"]) for action in signs}
    total = f"{counts['change']} to change, {counts['check']} to check"
    if counts["may change"]:
        total += f", {counts['may change']} that may change"
    if counts["fails"]:
        total += f", {counts['fails']} that would fail"
    if not any(counts[action] for action in ("change", "check", "may change", "fails")):
        yield Line(f"Nothing to do: {counts['ok']} tasks are as asked, {counts['skipped']} do not apply.", "ok")
    else:
        yield Line(f"Plan: {total}; {counts['ok']} ok, {counts['skipped']} skipped.", "heading")


_RENDERERS: dict[str, Any] = {
    "run_started": _run_started,
    "recovered": _recovered,
    "play_started": _play,
    "section_started": _section,
    "task_started": _task_started,
    "task_result": _task_result,
    "prediction_differs": _prediction_differs,
    "rolled_back": _rolled_back,
    "completed": _completed,
    "rollback_failed": _rollback_failed,
    "warning": _warning,
    "recap": _recap,
    "run_ended": _run_ended,
}
