"""A run as a document: gates that did not run, what was taken back, downtime, measurements."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from tests.support.run_reports import FAST, SAMPLES, START, Recorder, benchmarked, pairs_of, passed, sample_lines

from crossgrade.engine.results import TaskResult
from crossgrade.gates.verdict import Verdict
from crossgrade.modules.contract import Difference
from crossgrade.report.comparisons import limits_of, mean_interval
from crossgrade.report.document import make_document
from crossgrade.report.downtime import downtime_of
from crossgrade.report.measurements import read_samples


def test_an_empty_report_is_a_run_without_an_end() -> None:
    document = make_document({}, {})
    assert (document.state, document.exit_code, document.seconds, document.gates) == ("interrupted", None, None, ())
    assert "no end on record" in document.outcome
    assert "rollback" in document.way_back


@pytest.mark.parametrize("value", [None, 5, "text", ["list"], {"tasks": 3, "plan": [], "outcome": "x"}])
def test_a_report_of_another_shape_is_no_error(value: Any) -> None:
    report = (
        value if isinstance(value, dict) else {"tasks": value, "run": value, "outcome": value, "rolled_back": value}
    )
    assert make_document(report, {}).steps == ()


def test_a_run_that_went_well() -> None:
    changed = TaskResult("changed", summary="new", changed=True, seconds=0.5, differences=(Difference("d", "1", "2"),))
    document = Recorder().plan().task("Build", changed).gate(passed()).end().document()
    assert (document.state, document.run, document.seconds, document.active) == ("done", "R", 9.0, 2)
    assert document.started == START + 1
    assert [(gate.name, gate.outcome) for gate in document.gates] == [("abi", "passed")]
    assert document.changes[0].rows == (("d", "1", "2"),)
    assert (document.steps[0].began, document.steps[0].seconds) == (1.5, 0.5)
    assert document.way_back.startswith("`crossgrade rollback`")


def test_gates_that_the_run_never_came_to_are_not_run() -> None:
    plan = [
        {"action": "check", "task": "play0/abi", "item": "", "name": "abi", "module": "abi_check"},
        {"action": "check", "task": "play0/late", "item": "8", "name": "late", "module": "benchmark"},
        {"action": "change", "task": "play0/other", "item": "", "name": "other", "module": "activate"},
    ]
    failed = Verdict("abi", "failed", "libx is missing")
    document = Recorder().plan(*plan).gate(failed).end(2, outcome="FAILED and rolled back").document()
    assert [(gate.name, gate.outcome) for gate in document.gates] == [("abi", "failed"), ("late (8)", "not run")]
    assert "before it came" in document.gates_with("not run")[0].reason
    assert document.state == "failed"


def test_a_gate_that_was_let_pass_did_not_pass() -> None:
    verdict = Verdict("server", "not run", "no driver")
    document = Recorder().gate(verdict, name="Serves", failed=False).end(gates_not_run=["Serves"]).document()
    assert [(gate.outcome, gate.remark) for gate in document.gates] == [("not run", "let pass by `on_not_run: warn`")]
    assert document.gates_with("passed") == ()


def test_a_verdict_on_record_counts_and_says_so() -> None:
    figures = {"judged_at": "2026-12-01T10:00:00Z"}
    values = {"verdict": "passed", "reason": "fine", "figures": figures, "findings": []}
    document = Recorder().task("ABI", TaskResult("ok", values=values), module="abi_check").end().document()
    gate = document.gates[0]
    assert (gate.gate, gate.outcome, gate.reason) == ("abi", "passed", "fine")
    assert "on record since 2026-12-01" in gate.remark


def test_what_was_taken_back_is_marked() -> None:
    changed = TaskResult("changed", summary="made", changed=True)
    run = Recorder().task("A", changed).task("B", changed)
    run.emit("rolled_back", task="play0/B", name="B", what="removed it")
    run.emit("rollback_failed", task="play0/A", name="A", what="disk", by_hand=["rm x"])
    document = run.end(3, outcome="FAILED, and the rollback failed too").document()
    assert [(change.name, change.taken_back) for change in document.changes] == [("A", ""), ("B", "removed it")]
    assert document.rollback_failed == (("A: disk", ("rm x",)),)


# ---- downtime


def stop(at: float, *words: str) -> dict[str, Any]:
    return {"module": "command", "status": "changed", "time": at, "seconds": 2.0, "values": {"cmd": list(words)}}


def activated(**values: float) -> dict[str, Any]:
    return {"module": "activate", "status": "changed", "time": 0.0, "seconds": 0.0, "values": values}


def drained(**values: float) -> dict[str, Any]:
    return {"module": "drain", "status": "changed", "time": 0.0, "seconds": 0.0, "values": values}


UP = activated(service_restarted_at=150.0, service_healthy_at=180.0)


@pytest.mark.parametrize(
    ("tasks", "well", "seconds", "words"),
    [
        ([stop(100.0, "systemctl", "stop", "sglang"), UP], True, 82.0, "from the stop"),
        ([stop(100.0, "/usr/bin/systemctl", "--user", "stop", "sglang"), UP], True, 82.0, "from the stop"),
        ([stop(100.0, "systemctl", "status", "stop"), UP], True, 30.0, "from the restart"),
        ([stop(100.0, "echo", "systemctl", "stop"), UP], True, 30.0, "from the restart"),
        ([stop(100.0, "systemctl", "stop", "sglang"), {**UP, "values": {}}], True, None, "health"),
        ([stop(100.0, "systemctl", "stop", "sglang")], False, None, "old server"),
        ([activated()], True, None, "no event tells"),
        ([drained(closed_at=120.0), UP], True, 60.0, "from the stop"),
        ([drained(closed_at=120.0), stop(152.0, "systemctl", "stop", "x"), UP], True, 60.0, "from the stop"),
        ([drained(requests=0), UP], True, 30.0, "from the restart"),
        ([], True, None, "no event tells"),
    ],
)
def test_downtime_is_told_only_where_events_tell_it(
    tasks: list[dict[str, Any]], well: bool, seconds: float | None, words: str
) -> None:
    downtime = downtime_of(tasks, ended_well=well)
    assert downtime.seconds == seconds
    assert words in downtime.reason


# ---- measurements


def test_samples_are_read_as_they_were_written() -> None:
    (measured,) = read_samples(sample_lines(pairs_of(FAST, concurrency=8)))
    assert (measured.concurrency, measured.problem, len(measured.launches)) == (8, "", 8)
    assert measured.pairs("output_tokens_per_second") == tuple((n, *pair) for n, pair in enumerate(FAST, 1))
    first = measured.of("old")[0]
    assert (len(first.times_to_first_token), len(first.inter_token_latencies), len(first.ends_to_end)) == (5, 45, 5)


def test_a_damaged_line_is_named_and_the_others_count() -> None:
    lines = sample_lines(pairs_of(FAST))
    (measured,) = read_samples([*lines[:3], lines[3][:100], "[]", *lines[4:]])
    assert measured.problem == "unreadable: line 4, 5 of the samples"
    assert [number for number, _, _ in measured.pairs("output_tokens_per_second")] == [1, 2, 4]


def test_one_pair_has_no_interval() -> None:
    assert mean_interval([4.0, 4.0, 4.0]).lower == pytest.approx(4.0)
    assert mean_interval([4.0]).lower is None
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])


def test_the_interval_is_students_on_logarithms() -> None:
    """t(0.975, 2 degrees of freedom) is 4.3027 in every table."""
    interval = mean_interval([1.0, math.e, math.e**2])
    assert math.log(interval.mean) == pytest.approx(1.0)
    assert math.log(interval.upper or 0) == pytest.approx(1 + 4.3027 / math.sqrt(3), abs=1e-4)


def test_the_report_decides_as_the_gate_did() -> None:
    for speeds in (FAST, tuple((old, 0.8 * new) for old, new in FAST)):
        verdict, measured = benchmarked(speeds)
        document = Recorder().gate(verdict, name="Speed").end().document({SAMPLES: measured})
        compared = document.benchmarks[0].comparisons[0]
        recorded: Any = verdict.figures["metrics"]
        assert compared.judged
        assert compared.result.to_json() == pytest.approx(recorded["output_tokens_per_second"])
        assert compared.result.outcome == verdict.outcome
        assert not any(other.judged for other in document.benchmarks[0].comparisons[1:])


def test_without_samples_the_verdict_still_tells_each_launch() -> None:
    verdict, _ = benchmarked()
    benchmark = Recorder().gate(verdict, name="Speed").end().document().benchmarks[0]
    assert not benchmark.measurements.profile
    assert "only the figures of each launch" in benchmark.measurements.problem
    assert len(benchmark.comparisons[0].ratios) == 4


def test_each_concurrency_is_a_benchmark_of_its_own() -> None:
    run, samples = Recorder(), {}
    for concurrency in (1, 8):
        verdict, measured = benchmarked(concurrency=concurrency)
        path = f"/{concurrency}.jsonl"
        samples[path] = measured
        figures = {**verdict.figures, "samples": path}
        run.gate(Verdict("benchmark", "passed", "", (), figures), name="Speed", item=str(concurrency))
    assert [each.title for each in run.end().document(samples).benchmarks] == ["Concurrency 1", "Concurrency 8"]


def test_an_open_loop_is_called_by_its_rate() -> None:
    verdict, (measured,) = benchmarked()
    load = replace(measured, profile={**measured.profile, "rate": 2.5, "concurrency": 1})
    benchmark = Recorder().gate(verdict, name="Speed").end().document({SAMPLES: (load,)}).benchmarks[0]
    assert (benchmark.title, load.concurrency) == ("2.5 requests/s", None)


# ---- several loads, void replicates, the new server alone: as the benchmark of several profiles writes them


def with_two_loads(line: str) -> str:
    pair = json.loads(line)
    if "profile" in pair:
        loads = [{**pair["profile"], "name": name, "concurrency": number} for name, number in (("one", 1), ("many", 8))]
        return json.dumps({**pair, "profiles": loads})
    for side in ("old", "new"):
        result = pair[side]["result"]
        metrics = {**result["metrics"], "output_tokens_per_second": 5 * result["metrics"]["output_tokens_per_second"]}
        pair[side]["further_results"] = [{**result, "metrics": metrics}]
    return json.dumps(pair)


def test_several_loads_in_each_launch_are_kept_apart() -> None:
    loads = read_samples(map(with_two_loads, sample_lines(pairs_of(FAST))))
    assert [(load.name, load.concurrency, len(load.launches)) for load in loads] == [("one", 1, 8), ("many", 8, 8)]
    assert [load.pairs("output_tokens_per_second")[0][1:] for load in loads] == [(100.0, 101.0), (500.0, 505.0)]
    verdict, _ = benchmarked()
    result: Any = verdict.figures["metrics"]
    figures: dict[str, Any] = {
        **verdict.figures,
        "profiles": {"one": {"metrics": {}}, "many": {"metrics": result}},
        "allowed_losses": {},
    }
    run = Recorder().gate(Verdict("benchmark", "passed", "", (), figures), name="Speed").end()
    benchmarks = run.document({SAMPLES: loads}).benchmarks
    assert [each.title for each in benchmarks] == ["one, Concurrency 1", "many, Concurrency 8"]
    assert [any(compared.judged for compared in each.comparisons) for each in benchmarks] == [False, True]


def test_void_replicates_are_told_and_do_not_count() -> None:
    lines = sample_lines(pairs_of(FAST))
    launch = json.loads(lines[1])["new"]
    void = {"void": 2, "causes": [{"side": "new", "kind": "errors", "detail": "2 http_status"}], "launches": [launch]}
    (measured,) = read_samples([*lines[:2], json.dumps(void), *lines[2:]])
    assert (len(measured.launches), measured.problem) == (8, "")
    assert measured.void == ("replicate 2: new server: 2 http_status",)


def test_the_new_server_alone_is_held_against_limits() -> None:
    lines = sample_lines(pairs_of(FAST))
    alone = [json.dumps({"number": n, "new": json.loads(line)["new"]}) for n, line in enumerate(lines[1:], 1)]
    (measured,) = read_samples([lines[0], *alone])
    assert (measured.sides, measured.pairs("output_tokens_per_second")) == (("new",), ())
    figures = {"limits": {"output_tokens_per_second": {"limit": 89.5, "outcome": "passed"}, "nonsense": {}}}
    (limit,) = limits_of(measured, figures)
    assert (limit.kind, limit.limit, limit.outcome) == ("floor", 89.5, "passed")
    assert limit.new.mean == pytest.approx(101.24, abs=0.01)
