"""The numbers behind each plot, as tables: for those who cannot see it, and for those who want to check it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crossgrade.bench.statistics import percentile
from crossgrade.gates.benchmark import Metric
from crossgrade.report.comparisons import Comparison, Interval, Limit
from crossgrade.report.measurements import SIDES, Launch, Measurements

Values = Callable[[Launch], Sequence[float]]


@dataclass(frozen=True)
class Table:
    """Heads of columns, and rows whose first cell is their head."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """Each metric: both sides with their intervals, the ratio with its bounds, what was allowed, the decision."""
    heads = ("metric", "old", "new", "new / old", "allowed loss", "decision")
    return Table(heads, tuple(_comparison(compared) for compared in comparisons))


def _comparison(compared: Comparison) -> tuple[str, ...]:
    result, metric = compared.result, compared.metric
    bounds = ""
    if result.lower_bound_ratio is not None and result.upper_bound_ratio is not None:
        bounds = f" ({result.lower_bound_ratio:.3f} to {result.upper_bound_ratio:.3f})"
    return (
        f"{metric.label}, {metric.unit}",
        interval_text(compared.old, metric.scale),
        interval_text(compared.new, metric.scale),
        f"{result.mean_ratio:.3f}{bounds}",
        f"{100 * result.allowed_loss:g}%" if compared.judged else "",
        result.outcome if compared.judged else "not judged",
    )


def limit_table(limits: Sequence[Limit]) -> Table:
    """What the new server was held to besides the old one."""
    return Table(
        ("metric", "new", "limit", "decision"),
        tuple(
            (
                f"{each.metric.label}, {each.metric.unit}",
                interval_text(each.new, each.metric.scale),
                f"{each.kind} {number_text(each.limit * each.metric.scale)}",
                each.outcome,
            )
            for each in limits
        ),
    )


def pair_table(compared: Comparison, measurements: Measurements) -> Table:
    """The figure of each launch, pair by pair."""
    scale = compared.metric.scale
    return Table(
        ("pair", f"old, {compared.metric.unit}", f"new, {compared.metric.unit}", "new / old"),
        tuple(
            (str(number), number_text(old * scale), number_text(new * scale), f"{new / old:.3f}")
            for number, old, new in measurements.pairs(compared.name)
        ),
    )


def launch_table(metric: Metric, measurements: Measurements, values: Values) -> Table:
    """Percentiles of what was measured in each launch."""
    percents = (0, 50, 90, 99, 100)
    rows = []
    for launch in sorted(measurements.launches, key=lambda launch: (launch.pair, SIDES.index(launch.side))):
        found = values(launch)
        if found:
            cells = (number_text(percentile(found, percent) * metric.scale) for percent in percents)
            rows.append((f"{launch.pair}, {launch.side}", f"{len(found):,}", *cells))
    unit = metric.unit
    return Table(("launch", "count", f"least, {unit}", "median", "90%", "99%", "greatest"), tuple(rows))


def interval_text(interval: Interval, scale: float) -> str:
    """`812 (799 to 825)`."""
    mean = number_text(interval.mean * scale)
    if interval.lower is None or interval.upper is None:
        return f"{mean} (one launch)"
    return f"{mean} ({number_text(interval.lower * scale)} to {number_text(interval.upper * scale)})"


def number_text(value: float) -> str:
    """Three significant digits at least, and no exponent that a person has to work out."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"
