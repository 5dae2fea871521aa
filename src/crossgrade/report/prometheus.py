"""The document of a run as a Prometheus textfile, for node_exporter's textfile collector.

Names and units follow Prometheus' own practice (base units, unit as suffix); the text is the exposition format 0.0.4.
Each sample has the run's playbook and host as labels, and no run's id: that would be a new series for each run. The
file is to be replaced by the next run, so it says when this one ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from crossgrade.report.document import Benchmark, Document, Gate
from crossgrade.report.visible import visible

Labels = Mapping[str, str]
_UNITS = {
    "tokens/s": "tokens_per_second",
    "requests/s": "requests_per_second",
    "tokens/step": "tokens_per_step",
    "ms": "seconds",  # a metric's own value is in seconds
}


@dataclass(frozen=True)
class _Family:
    name: str
    help: str
    samples: tuple[tuple[Labels, float], ...]


def render_prometheus(document: Document) -> str:
    """The text. What is not known has no sample: a 0 would be a measurement."""
    common = {"playbook": PurePath(document.playbook).name, "host": document.host}
    lines: list[str] = []
    for family in _families(document):
        if not family.samples:
            continue
        lines += [f"# HELP {family.name} {_escaped(family.help, quotes=False)}", f"# TYPE {family.name} gauge"]
        seen = set()
        for labels, value in family.samples:
            text = ",".join(f'{key}="{_escaped(said)}"' for key, said in {**common, **labels}.items())
            if text not in seen:  # two of one name would make the whole file void
                lines.append(f"{family.name}{{{text}}} {value!r}")
            seen.add(text)
    return "\n".join(lines) + "\n"


def _families(document: Document) -> Iterator[_Family]:
    def one(name: str, told: str, value: float | None) -> _Family:
        return _Family(f"crossgrade_{name}", told, () if value is None else (({}, float(value)),))

    yield one("run_success", "1 when the last run came to a good end, 0 when it did not.", document.state == "done")
    yield one("run_exit_code", "Exit code of the run.", document.exit_code)
    yield one("run_start_timestamp_seconds", "When the run began, in seconds since 1970.", document.started)
    yield one("run_end_timestamp_seconds", "When the run ended, in seconds since 1970.", document.ended)
    yield one("run_duration_seconds", "How long the run took.", document.seconds)
    yield one("run_downtime_seconds", "For how long nothing was served.", document.downtime.seconds)
    yield one("active_generation", "Number of the generation that is active after the run.", document.active)
    for name, outcome in (("passed", "passed"), ("not_run", "not run")):
        told = f"1 when the gate's verdict was `{outcome}`, else 0. A gate that did not run did not pass."
        judged = tuple((_gate_labels(gate), float(gate.outcome == outcome)) for gate in document.gates)
        yield _Family(f"crossgrade_gate_{name}", told, judged)
    yield _Family(
        "crossgrade_task_duration_seconds",
        "How long each task took.",
        tuple(
            ({"number": str(number), "task": step.name, "module": step.module}, step.seconds)
            for number, step in enumerate(document.steps, 1)
        ),
    )
    yield from _benchmark_families(document.benchmarks)


def _gate_labels(gate: Gate) -> dict[str, str]:
    return {"gate": gate.gate, "task": gate.name}


def _benchmark_families(benchmarks: tuple[Benchmark, ...]) -> Iterator[_Family]:
    """One family for each unit, so that values of one name can be compared; then the ratios and their bounds."""
    values: dict[str, list[tuple[Labels, float]]] = {unit: [] for unit in _UNITS.values()}
    ratios: dict[str, list[tuple[Labels, float]]] = {"": [], "_lower_bound": [], "_upper_bound": []}
    for benchmark in benchmarks:
        concurrency = benchmark.measurements.concurrency
        labels = {
            "task": benchmark.gate.name,
            "load": benchmark.measurements.name,
            "concurrency": "" if concurrency is None else str(concurrency),
        }
        for compared in benchmark.comparisons:
            metric = {**labels, "metric": compared.name, "judged": str(compared.judged).lower()}
            unit, result = _UNITS[compared.metric.unit], compared.result
            values[unit] += [
                ({**metric, "side": "old"}, compared.old.mean),
                ({**metric, "side": "new"}, compared.new.mean),
            ]
            ratios[""].append((metric, result.mean_ratio))
            for name, bound in (("_lower_bound", result.lower_bound_ratio), ("_upper_bound", result.upper_bound_ratio)):
                if bound is not None:
                    ratios[name].append((metric, bound))
    for unit, samples in values.items():
        told = f"Geometric mean over the launches of a benchmark, in {unit.replace('_', ' ')}."
        yield _Family(f"crossgrade_benchmark_{unit}", told, tuple(samples))
    for name, samples in ratios.items():
        told = f"New to old, as measured{': the' if name else ''}{name.replace('_', ' ')}."
        yield _Family(f"crossgrade_benchmark{name}_ratio", told, tuple(samples))


def _escaped(text: str, *, quotes: bool = True) -> str:
    text = visible(text).replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
