"""Runs in miniature for tests of the report: events as the engine sends them, samples as the benchmark writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from crossgrade.bench.paired import Launch, Pair, PairedSamples, order_of
from crossgrade.bench.samples import LoadProfile, LoadResult, RequestSample
from crossgrade.engine.events import Event, Events
from crossgrade.engine.results import TaskResult, result_event
from crossgrade.gates.benchmark import BenchmarkRules, judge_benchmark
from crossgrade.gates.verdict import Finding, Verdict
from crossgrade.modules.contract import Difference
from crossgrade.report.document import Document, make_document
from crossgrade.report.measurements import Measurements, read_samples
from crossgrade.report.records import arrange

START = 1_800_000_000.0
SAMPLES = "/store/runs/R/benchmark.jsonl"
HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(2)>"
HOSTILE += "'\"&]]>`{{ 7 * 7 }}\x1b[31m\u202eevil\ud800\x00$x_{1}$"


class Recorder:
    """Events with a clock that goes on by a second at each."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._time = START
        self._emit = Events("localhost", (self._take,), self._tick).emit
        self._emit("run_started", run="R", command="upgrade", playbook="/p/play.yml", store="/store")

    def plan(self, *tasks: Mapping[str, Any]) -> Recorder:
        self._emit("plan", plan={"tasks": list(tasks)})
        return self

    def task(self, name: str, result: TaskResult, *, module: str = "command", item: str = "") -> Recorder:
        self._emit("task_result", **result_event(f"play0/{name}", name, module, result, item, None))
        return self

    def gate(self, verdict: Verdict, *, name: str = "", failed: bool | None = None, item: str = "") -> Recorder:
        lost = verdict.outcome == "failed" if failed is None else failed
        result = TaskResult("failed" if lost else "ok", message=verdict.reason, failed=lost, verdict=verdict.to_json())
        return self.task(name or verdict.gate, result, module=f"{verdict.gate}_check", item=item)

    def emit(self, kind: Any, **data: Any) -> Recorder:
        self._emit(kind, **data)
        return self

    def end(self, exit_code: int = 0, **data: Any) -> Recorder:
        told: dict[str, Any] = {
            "outcome": "Done",
            "reason": "",
            "evidence": [],
            "working_environment": "generation 2 is active",
        }
        told |= {"active": 2, "next_command": "`crossgrade rollback` returns to generation 1", "seconds": 9.0}
        self._emit("run_ended", exit_code=exit_code, **{**told, "gates_not_run": [], "confirmation": None, **data})
        return self

    def report(self) -> dict[str, Any]:
        """As it is read again from its file."""
        found: dict[str, Any] = json.loads(json.dumps(arrange(self.events)))
        return found

    def document(self, samples: Mapping[str, Sequence[Measurements]] | None = None) -> Document:
        return make_document(self.report(), samples or {})

    def _take(self, event: Event) -> None:
        self.events.append(event.to_json())

    def _tick(self) -> float:
        self._time += 1.0
        return self._time


def passed(gate: str = "abi") -> Verdict:
    return Verdict(gate, "passed", "all there")


def hostile_document() -> Document:
    """A run in which every text that comes from elsewhere is hostile."""
    finding = Finding("failure", HOSTILE, f"about {HOSTILE}", {HOSTILE: HOSTILE}, HOSTILE)
    explanation = {"kind": HOSTILE, "cause": HOSTILE, "remedy": HOSTILE, "count": 1, "links": [HOSTILE]}
    explanation["evidence"] = [{"line": 1, "text": HOSTILE}]
    result = TaskResult(
        "failed", message=HOSTILE, failed=True, differences=(Difference(HOSTILE, HOSTILE, HOSTILE),),
        explanations=(explanation,),
    )  # fmt: skip
    changed = TaskResult("changed", summary=HOSTILE, changed=True, differences=result.differences)
    run = Recorder().plan({"action": "check", "task": "x", "item": HOSTILE, "name": HOSTILE, "module": HOSTILE})
    run.task(HOSTILE, changed, item=HOSTILE).task(HOSTILE, result)
    run.gate(Verdict("abi", "failed", HOSTILE, (finding,), {HOSTILE: [HOSTILE], "figure": HOSTILE}), name=HOSTILE)
    run.emit("rolled_back", task=f"play0/{HOSTILE}", name=HOSTILE, what=HOSTILE)
    run.emit("rollback_failed", task="y", name=HOSTILE, what=HOSTILE, by_hand=[HOSTILE])
    run.emit("warning", message=HOSTILE)
    run.emit("prediction_differs", task="y", name=HOSTILE, predicted=HOSTILE, happened=HOSTILE)
    waits = {"generation": HOSTILE, "previous": HOSTILE, "command": HOSTILE}
    ended = {"outcome": HOSTILE, "reason": HOSTILE, "evidence": [HOSTILE], "next_command": HOSTILE}
    return run.end(2, **ended, working_environment=HOSTILE, confirmation=waits).document()


def load_result(speed: float, concurrency: int = 1, requests: int = 5) -> LoadResult:
    profile = LoadProfile(concurrency=concurrency, requests=requests, max_tokens=10)
    samples = tuple(
        RequestSample(
            index, 0.1 * index, 10 / speed + 0.001 * index, 0.004 + 0.001 * index,
            (0.0, *(1 / speed + 1e-4 * k for k in range(8))), 10, 10, "usage",
        )
        for index in range(requests)
    )  # fmt: skip
    return LoadResult(profile, samples, (), window_seconds=1.0, window_tokens=speed)


def pairs_of(speeds: Sequence[tuple[float, float]], concurrency: int = 1, requests: int = 5) -> PairedSamples:
    return PairedSamples(
        tuple(
            Pair(
                number,
                order_of(number)[0],
                Launch("old", START, 0.5, load_result(old, concurrency, requests)),
                Launch("new", START, 0.5, load_result(new, concurrency, requests)),
            )
            for number, (old, new) in enumerate(speeds, 1)
        )
    )


def sample_lines(samples: PairedSamples) -> list[str]:
    """The file that `modules.benchmark` writes."""
    profile = samples.pairs[0].old.result.profile.to_json()
    return [json.dumps({"schema": 1, "profile": profile, "sides": {}})] + [
        json.dumps(pair.to_json()) for pair in samples.pairs
    ]


FAST = ((100.0, 101.0), (104.0, 103.0), (98.0, 99.0), (101.0, 102.0))


def benchmarked(
    speeds: Sequence[tuple[float, float]] = FAST, concurrency: int = 1, requests: int = 5
) -> tuple[Verdict, tuple[Measurements, ...]]:
    """A verdict as the gate gives it on these launches (tokens/s, old and new), and the samples as they are read."""
    samples = pairs_of(speeds, concurrency, requests)
    verdict = judge_benchmark(samples, BenchmarkRules({"output_tokens_per_second": 0.05}, 2, 4))
    figures = {**verdict.figures, "samples": SAMPLES}
    return Verdict(verdict.gate, verdict.outcome, verdict.reason, verdict.findings, figures), read_samples(
        sample_lines(samples)
    )
