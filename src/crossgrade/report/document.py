"""A run as a document: what its report file says, in the order and the words in which people read it. Pure.

It is made from the data of `report.json` (`report.records`) and from the samples of its benchmarks, and read by the
page, JUnit XML and Prometheus alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from crossgrade.report.comparisons import Comparison, Limit, compare_metrics, limits_of
from crossgrade.report.downtime import Downtime, downtime_of
from crossgrade.report.measurements import Measurements, from_figures

State = Literal["done", "failed", "interrupted"]
GateOutcome = Literal["passed", "failed", "not run"]

# The figures of a benchmark that its plots and tables show already.
_SHOWN_ELSEWHERE = ("launches", "metrics", "limits", "profiles")


@dataclass(frozen=True)
class Finding:
    level: str
    subject: str
    message: str
    fault: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Gate:
    """One verdict. `remark` is what else must be known: that it is on record, or that it was let pass unasked."""

    name: str
    gate: str
    outcome: GateOutcome
    reason: str
    findings: tuple[Finding, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    remark: str = ""
    seconds: float = 0.0

    def of_level(self, level: str) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == level)


@dataclass(frozen=True)
class Explanation:
    """A known failure in what a task printed."""

    kind: str
    cause: str
    remedy: str
    evidence: tuple[str, ...]
    links: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """One task, or one item of its loop. `began` is seconds since the run's first event."""

    name: str
    module: str
    status: str
    message: str
    began: float
    seconds: float
    explanations: tuple[Explanation, ...] = ()

    @property
    def failed(self) -> bool:
        return self.status == "failed"


@dataclass(frozen=True)
class Change:
    """What one task changed: subject, before, after. `taken_back` is what undid it, "" when it stands."""

    name: str
    summary: str
    rows: tuple[tuple[str, str, str], ...]
    taken_back: str = ""


@dataclass(frozen=True)
class Benchmark:
    """One load of a benchmark: its verdict, what was measured, old against new, and the new server against limits."""

    gate: Gate
    measurements: Measurements
    comparisons: tuple[Comparison, ...]
    limits: tuple[Limit, ...] = ()

    @property
    def title(self) -> str:
        name, concurrency, rate = self.measurements.name, self.measurements.concurrency, self.measurements.rate
        told = f"Concurrency {concurrency}" if concurrency is not None else ""
        told = told if rate is None else f"{rate:g} requests/s"
        return ", ".join(part for part in (name, told) if part) or self.gate.name


@dataclass(frozen=True)
class Document:
    """One run. Times are seconds since 1970; `seconds` is how long it took, None where that is not known."""

    run: str
    command: str
    host: str
    playbook: str
    state: State
    outcome: str
    reason: str
    evidence: tuple[str, ...]
    working_environment: str
    way_back: str
    confirmation: str
    started: float | None
    ended: float | None
    seconds: float | None
    exit_code: int | None
    active: int | None
    gates: tuple[Gate, ...]
    steps: tuple[Step, ...]
    changes: tuple[Change, ...]
    rolled_back: tuple[str, ...]
    rollback_failed: tuple[tuple[str, tuple[str, ...]], ...]
    warnings: tuple[str, ...]
    benchmarks: tuple[Benchmark, ...]
    downtime: Downtime

    def gates_with(self, outcome: GateOutcome) -> tuple[Gate, ...]:
        return tuple(gate for gate in self.gates if gate.outcome == outcome)


def samples_path(gate: Gate) -> str:
    """Where a benchmark's samples were written; "" for a gate that measured none."""
    path = gate.figures.get("samples")
    return path if gate.gate == "benchmark" and isinstance(path, str) else ""


def make_document(report: Mapping[str, Any], samples: Mapping[str, Sequence[Measurements]]) -> Document:
    """The document of a report's data. `samples` are the measurements by the path that a verdict names.

    What is missing in a report (an older one, one of a run that was killed) is empty or None.
    """
    run, ended = _mapping(report.get("run")), _mapping(report.get("outcome"))
    tasks = [task for task in _list(report.get("tasks")) if isinstance(task, Mapping)]
    started = _number(run.get("time"))
    exit_code = ended.get("exit_code")
    gates = tuple(_gates(report, tasks, ended))
    state: State = "interrupted" if exit_code is None else "done" if exit_code == 0 else "failed"
    return Document(
        run=_text(run.get("run")),
        command=_text(run.get("command")),
        host=_text(run.get("host")),
        playbook=_text(run.get("playbook")),
        state=state,
        outcome=_text(ended.get("outcome")) or "INTERRUPTED: the run has no end on record",
        reason=_text(ended.get("reason")),
        evidence=tuple(map(_text, _list(ended.get("evidence")))),
        working_environment=_text(ended.get("working_environment")) or "not known: `crossgrade status` says it",
        way_back=_text(ended.get("next_command")) or ("" if ended else "`crossgrade rollback` undoes the whole run"),
        confirmation=_confirmation(_mapping(ended.get("confirmation"))),
        started=started,
        ended=_number(ended.get("time")),
        seconds=_number(ended.get("seconds")),
        exit_code=exit_code if isinstance(exit_code, int) else None,
        active=ended.get("active") if isinstance(ended.get("active"), int) else None,
        gates=gates,
        steps=tuple(_step(task, started) for task in tasks),
        changes=tuple(_changes(report, tasks)),
        rolled_back=tuple(_undone(event) for event in _events(report, "rolled_back")),
        rollback_failed=tuple(
            (_undone(event), tuple(map(_text, _list(event.get("by_hand")))))
            for event in _events(report, "rollback_failed")
        ),
        warnings=tuple(_warnings(report)),
        benchmarks=tuple(_benchmarks(gates, samples)),
        downtime=downtime_of(tasks, ended_well=state == "done"),
    )


# ---- gates


def _gates(report: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], ended: Mapping[str, Any]) -> Iterator[Gate]:
    """The verdicts of this run and those on record, then the gates that the plan foresaw and the run never came to."""
    let_pass = {_text(name) for name in _list(ended.get("gates_not_run"))}
    seen = set()
    for task in tasks:
        seen.add((_text(task.get("task")), _text(task.get("item"))))
        verdict, values = _mapping(task.get("verdict")), _mapping(task.get("values"))
        if verdict:
            remark = "let pass by `on_not_run: warn`" if _text(task.get("name")) in let_pass else ""
            yield _gate(task, verdict, remark)
        elif values.get("verdict") in ("passed", "failed", "not run"):
            judged = _text(_mapping(values.get("figures")).get("judged_at"))
            recorded = {**values, "gate": _gate_name(task), "outcome": values["verdict"]}
            yield _gate(task, recorded, f"on record{f' since {judged}' if judged else ''}: not asked again")
    plan = _mapping(_mapping(report.get("plan")).get("plan"))
    for planned in _list(plan.get("tasks")):
        task = _mapping(planned)
        if task.get("action") == "check" and (_text(task.get("task")), _text(task.get("item"))) not in seen:
            reason = "the run ended before it came to this gate"
            yield _gate(task, {"gate": _gate_name(task), "outcome": "not run", "reason": reason}, "")


def _gate_name(task: Mapping[str, Any]) -> str:
    """What verdicts call the gate of a module: `abi` for `abi_check`."""
    return _text(task.get("module")).removesuffix("_check")


def _gate(task: Mapping[str, Any], verdict: Mapping[str, Any], remark: str) -> Gate:
    outcome = verdict.get("outcome")
    return Gate(
        _titled(task),
        _text(verdict.get("gate")),
        "passed" if outcome == "passed" else "not run" if outcome == "not run" else "failed",
        _text(verdict.get("reason")),
        tuple(
            Finding(
                _text(found.get("level")),
                _text(found.get("subject")),
                _text(found.get("message")),
                _text(found.get("fault")),
                _mapping(found.get("evidence")),
            )
            for found in map(_mapping, _list(verdict.get("findings")))
        ),
        _mapping(verdict.get("figures")),
        remark,
        _number(task.get("seconds")) or 0.0,
    )


def shown_figures(gate: Gate) -> dict[str, Any]:
    """The numbers behind a verdict, without those that have plots of their own."""
    return {name: value for name, value in gate.figures.items() if name not in _SHOWN_ELSEWHERE}


def _benchmarks(gates: Sequence[Gate], samples: Mapping[str, Sequence[Measurements]]) -> Iterator[Benchmark]:
    """One for each load of each benchmark that measured something."""
    for gate in gates:
        loads: Sequence[Measurements] = samples.get(samples_path(gate), ())
        if not any(each.launches for each in loads):
            if not gate.figures.get("launches"):
                continue
            why = next((each.problem for each in loads if each.problem), "the samples were not read")
            loads = from_figures(gate.figures, f"{why}: only the figures of each launch are shown")
        for each in loads:
            yield Benchmark(gate, each, compare_metrics(each, gate.figures), tuple(limits_of(each, gate.figures)))


# ---- steps and changes


def _step(task: Mapping[str, Any], started: float | None) -> Step:
    seconds = _number(task.get("seconds")) or 0.0
    at = _number(task.get("time"))
    began = 0.0 if at is None or started is None else max(0.0, at - seconds - started)
    return Step(
        _titled(task),
        _text(task.get("module")),
        _text(task.get("status")),
        _text(task.get("message")),
        began,
        seconds,
        tuple(
            Explanation(
                _text(each.get("kind")),
                _text(each.get("cause")),
                _text(each.get("remedy")),
                tuple(_text(_mapping(line).get("text")) for line in _list(each.get("evidence"))),
                tuple(map(_text, _list(each.get("links")))),
            )
            for each in map(_mapping, _list(task.get("explanations")))
        ),
    )


def _changes(report: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]]) -> Iterator[Change]:
    undone = {_text(event.get("task")): _text(event.get("what")) for event in _events(report, "rolled_back")}
    for task in tasks:
        if task.get("status") != "changed":
            continue
        rows = tuple(
            (_text(each.get("subject")), _text(each.get("before")), _text(each.get("after")))
            for each in map(_mapping, _list(task.get("differences")))
        )
        summary = _text(task.get("summary")) or _text(task.get("message"))
        yield Change(_titled(task), summary, rows, undone.get(_text(task.get("task")), ""))


def _undone(event: Mapping[str, Any]) -> str:
    return f"{_text(event.get('name'))}: {_text(event.get('what'))}"


def _warnings(report: Mapping[str, Any]) -> Iterator[str]:
    for event in _events(report, "warnings"):
        yield _text(event.get("message"))
    for event in _events(report, "prediction_differs"):
        foreseen, happened = _text(event.get("predicted")), _text(event.get("happened"))
        yield f"{_text(event.get('name'))}: the plan foresaw `{foreseen}`, what happened was `{happened}`"


def _confirmation(confirmation: Mapping[str, Any]) -> str:
    """What waits to be confirmed, in one sentence."""
    if not confirmation:
        return ""
    generation, previous = confirmation.get("generation"), confirmation.get("previous")
    return (
        f"generation {generation} was to be confirmed by `{_text(confirmation.get('command'))}`; "
        f"without that, generation {previous} becomes active again"
    )


# ---- reading what may be of another shape


def _titled(task: Mapping[str, Any]) -> str:
    item = _text(task.get("item"))
    return f"{_text(task.get('name'))} ({item})" if item else _text(task.get("name"))


def _events(report: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    return [event for event in _list(report.get(name)) if isinstance(event, Mapping)]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
