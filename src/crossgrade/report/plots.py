"""Plots of a benchmark as SVG that takes its colours from the page: matplotlib draws, nothing of it runs in the reader.

Every colour is drawn as one of a few that nothing else has (`_COLOURS`) and then replaced by a variable of the page's
style sheet, so that one picture serves light, dark and print. Texts stay texts, in the reader's own font. Each plot is
small enough for a phone; the page lays them side by side where there is room. Old and new differ by shape as well.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossgrade.bench.statistics import median
from crossgrade.gates.benchmark import METRICS, Metric
from crossgrade.report.comparisons import Comparison, Interval, Limit, mean_interval
from crossgrade.report.document import Benchmark
from crossgrade.report.measurements import SIDES, Launch, Measurements, Side
from crossgrade.report.tables import Table, comparison_table, interval_text, launch_table, limit_table, pair_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    "old": "#010203",
    "new": "#010204",
    "text": "#010205",
    "faint": "#010206",
    "grid": "#010207",
    "bad": "#010208",
}
# Dots as a picture inside the SVG cannot take the page's colours: these are read on light and on dark.
_PICTURE = {"old": "#4f86c6", "new": "#d9791f"}
_MARKERS = {"old": "o", "new": "D"}
_WIDTH = 4.4  # inches of 72 units; the page scales it to its column
_MOST_DOTS = 2000  # on one side; above, the dots become a picture
_MOST_STEPS = 1000  # of the curve of a distribution
_SHORTEST = 1e-5  # seconds; a logarithmic axis has no zero


@dataclass(frozen=True)
class Plot:
    """One picture. `description` is for those who cannot see it, `caption` says how to read it."""

    title: str
    caption: str
    description: str
    svg: str
    table: Table


def benchmark_plots(benchmark: Benchmark, prefix: str) -> Iterator[Plot]:
    """The plots of one benchmark. `prefix` keeps the names inside the pictures apart on a page with several."""
    measurements, comparisons = benchmark.measurements, benchmark.comparisons
    with _our_settings():
        if comparisons:
            yield _ratios(comparisons, f"{prefix}r")
        for number, compared in enumerate(comparisons):
            if compared.judged or compared.name == "output_tokens_per_second":
                yield _launches(compared, measurements, f"{prefix}l{number}")
        for number, limit in enumerate(benchmark.limits):
            yield _limit(limit, benchmark, f"{prefix}f{number}")
        for number, series in enumerate(_SERIES):
            if series.sides(measurements):
                draw = _distribution if series.curve else _requests
                yield draw(series, measurements, f"{prefix}s{number}")


@dataclass(frozen=True)
class _Series:
    """Seconds of each request (or of each token): where they are in a launch, and which metric is their middle."""

    title: str
    metric: str
    values: Callable[[Launch], Sequence[float]]
    curve: bool = False

    def sides(self, measurements: Measurements) -> tuple[Side, ...]:
        """Those for which there is a value."""
        return tuple(side for side in SIDES if any(self.values(launch) for launch in measurements.of(side)))


_SERIES = (
    _Series("Time to first token, each request", "ttft_median", lambda launch: launch.times_to_first_token),
    _Series("Inter-token latency, every token", "itl_median", lambda launch: launch.inter_token_latencies, curve=True),
    _Series("End-to-end latency, each request", "end_to_end_median", lambda launch: launch.ends_to_end),
)


@contextmanager
def _our_settings() -> Iterator[None]:
    """matplotlib as it comes, whatever a matplotlibrc of this user or folder says, and without its messages."""
    import matplotlib

    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)  # "building the font cache" is no news of a run
    try:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(
                {
                    "svg.fonttype": "none",
                    "svg.hashsalt": "crossgrade",
                    "text.parse_math": False,  # a name may hold dollar signs
                    "font.family": ["DejaVu Sans"],  # comes with matplotlib: widths are the same everywhere
                    "font.size": 10,
                    "axes.edgecolor": _COLOURS["faint"],
                    "axes.labelcolor": _COLOURS["text"],
                    "text.color": _COLOURS["text"],
                    "xtick.color": _COLOURS["text"],
                    "ytick.color": _COLOURS["text"],
                    "grid.color": _COLOURS["grid"],
                    "axes.spines.top": False,
                    "axes.spines.right": False,
                    "axes.formatter.useoffset": False,
                    "legend.frameon": False,
                }
            )
            yield
    finally:
        logger.setLevel(level)


# ---- one plot each


def _ratios(comparisons: Sequence[Comparison], prefix: str) -> Plot:
    figure, axes = _figure(0.9 + 0.52 * len(comparisons))
    for row, compared in enumerate(comparisons):
        y = len(comparisons) - 1 - row
        result, colour = compared.result, _COLOURS["new" if compared.judged else "faint"]
        for index, ratio in enumerate(compared.ratios):
            axes.plot([ratio], [y + _spread(index) * 0.5], "o", color=colour, markersize=3.5, alpha=0.45, mew=0)
        if result.lower_bound_ratio is not None and result.upper_bound_ratio is not None:
            axes.plot([result.lower_bound_ratio, result.upper_bound_ratio], [y, y], color=colour, linewidth=2.2)
        axes.plot([result.mean_ratio], [y], _MARKERS["new"], color=colour, markersize=6, mew=0)
        if compared.judged:
            limit = 1 - result.allowed_loss if result.higher_is_better else 1 / (1 - result.allowed_loss)
            axes.plot([limit, limit], [y - 0.38, y + 0.38], color=_COLOURS["bad"], linewidth=2)
    axes.axvline(1.0, color=_COLOURS["faint"], linewidth=1, linestyle=(0, (3, 3)))
    axes.set_yticks(range(len(comparisons)), [_short(compared) for compared in reversed(comparisons)])
    axes.set_ylim(-0.6, len(comparisons) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("new / old")
    axes.grid(axis="x", linewidth=0.6)
    judged = [compared for compared in comparisons if compared.judged]
    told = "; ".join(f"{_short(each, ' ')} {each.result.mean_ratio:.3f}" for each in comparisons)
    return Plot(
        "New against old",
        "One small dot for each pair of launches, a diamond for their mean, a line for its bounds. "
        + (
            "Coloured: what the gate judges, with the allowed limit as an upright bar." if judged else "Nothing judged."
        ),
        f"Ratio of new to old: {told}",
        _svg(figure, prefix),
        comparison_table(comparisons),
    )


def _launches(compared: Comparison, measurements: Measurements, prefix: str) -> Plot:
    scale, pairs = compared.metric.scale, measurements.pairs(compared.name)
    figure, axes = _figure(3.0)
    for index, (_, old, new) in enumerate(pairs):
        offset = _spread(index) * 0.16
        axes.plot([offset, 1 + offset], [old * scale, new * scale], color=_COLOURS["faint"], linewidth=0.7, alpha=0.6)
        for place, side, value in ((0, SIDES[0], old), (1, SIDES[1], new)):
            axes.plot([place + offset], [value * scale], _MARKERS[side], color=_COLOURS[side], markersize=5, mew=0)
    means: dict[Side, Interval] = {"old": compared.old, "new": compared.new}
    for side, interval in means.items():
        _mean(axes, side, interval, scale)
    _side_by_side(axes, compared.metric.unit, SIDES)
    return Plot(
        f"{_capital(compared.metric.label)}, each launch",
        "Launches of one pair are joined. Beside them the mean with its 95% interval.",
        _means(compared.metric.label, compared.metric, means),
        _svg(figure, prefix),
        pair_table(compared, measurements),
    )


def _limit(limit: Limit, benchmark: Benchmark, prefix: str) -> Plot:
    """Launches of the new server above or below a line that it has to keep."""
    scale, unit = limit.metric.scale, limit.metric.unit
    figure, axes = _figure(3.0)
    launches = [each.metrics[limit.name] for each in benchmark.measurements.of("new") if limit.name in each.metrics]
    for index, value in enumerate(launches):
        axes.plot(
            [1 + _spread(index) * 0.3], [value * scale], _MARKERS["new"], color=_COLOURS["new"], markersize=5, mew=0
        )
    _mean(axes, "new", limit.new, scale)
    axes.axhline(limit.limit * scale, color=_COLOURS["bad"], linewidth=2)
    _side_by_side(axes, unit, ("new",))
    return Plot(
        f"{_capital(limit.metric.label)}, each launch against its {limit.kind}",
        f"The line is the {limit.kind}. Beside the launches their mean with its 95% interval.",
        f"{limit.outcome}: {_means(limit.metric.label, limit.metric, {'new': limit.new})}",
        _svg(figure, prefix),
        limit_table(benchmark.limits),
    )


def _requests(series: _Series, measurements: Measurements, prefix: str) -> Plot:
    metric = METRICS[series.metric]
    figure, axes = _figure(3.0)
    all_values, means = [], {}
    for side in series.sides(measurements):
        place = SIDES.index(side)
        values = [value * metric.scale for launch in measurements.of(side) for value in series.values(launch)]
        all_values += values
        picture = len(values) > _MOST_DOTS
        axes.scatter(
            [place + _spread(index) * 0.42 for index in range(len(values))],
            values,
            s=9,
            marker=_MARKERS[side],
            color=_PICTURE[side] if picture else _COLOURS[side],
            alpha=0.5,
            linewidths=0,
            rasterized=picture,
        )
        means[side] = _of_launches(series, measurements, side)
        _mean(axes, side, means[side], metric.scale)
    if min(all_values) > 0 and max(all_values) > 20 * min(all_values):
        _logarithmic(axes.yaxis, all_values)
    _side_by_side(axes, metric.unit, series.sides(measurements))
    return Plot(
        series.title,
        "One dot for each request. Beside them the mean of the launches' medians with its 95% interval.",
        _means("mean of the launches' medians", metric, means),
        _svg(figure, prefix),
        launch_table(metric, measurements, series.values),
    )


def _distribution(series: _Series, measurements: Measurements, prefix: str) -> Plot:
    metric = METRICS[series.metric]
    figure, axes = _figure(3.0)
    short, ends, counts, means = 0, [], [], {}
    for side in series.sides(measurements):
        values = sorted(value for launch in measurements.of(side) for value in series.values(launch))
        short += sum(value < _SHORTEST for value in values)
        count = len(values)
        counts.append(f"{count:,} {side}")
        ends += [max(values[0], _SHORTEST), max(values[-1], _SHORTEST)]
        means[side] = _of_launches(series, measurements, side)
        chosen = (
            range(count) if count <= _MOST_STEPS else [i * (count - 1) // _MOST_STEPS for i in range(_MOST_STEPS + 1)]
        )
        axes.step(
            [max(values[index], _SHORTEST) * metric.scale for index in chosen],
            [(index + 1) / count * 100 for index in chosen],
            where="post",
            color=_COLOURS[side],
            linewidth=1.8,
            linestyle="-" if side == "new" else (0, (4, 1.5)),
            label=side,
        )
    _logarithmic(axes.xaxis, ends)
    axes.set_xlabel(metric.unit)
    axes.set_ylabel("% of tokens within this time")
    axes.set_ylim(0, 101)
    axes.grid(linewidth=0.6)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, labelcolor=_COLOURS["text"], borderaxespad=0.2)
    note = f" {short:,} of less than 0.01 ms are drawn at 0.01 ms." if short else ""
    return Plot(
        series.title,
        f"The share of tokens ({' and '.join(counts)}) that came within a time; further left is faster.{note}",
        _means("mean of the launches' medians", metric, means),
        _svg(figure, prefix),
        launch_table(metric, measurements, series.values),
    )


# ---- parts of plots


def _figure(height: float) -> tuple[Any, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    return figure, axes


def _side_by_side(axes: Axes, unit: str, sides: Sequence[Side]) -> None:
    axes.set_xticks([SIDES.index(side) for side in sides], list(sides))
    axes.set_xlim(-0.55 if "old" in sides else 0.3, 1.55 if "old" in sides else 1.7)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel(unit)
    axes.grid(axis="y", linewidth=0.6)
    axes.set_axisbelow(True)


def _logarithmic(axis: Any, values: Sequence[float]) -> None:
    """A logarithmic axis for these values, with as many labels as there is room for."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    (axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale)("log")
    axis.set_major_locator(
        LogLocator(10, subs=(1.0,) if max(values) > 100 * min(values) else (1.0, 2.0, 5.0), numticks=12)
    )
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _mean(axes: Axes, side: Side, interval: Interval, scale: float) -> None:
    """A mean with its bounds as an error bar, on the outer side of its dots."""
    place = {"old": -0.31, "new": 1.31}[side]
    mean = interval.mean * scale
    if interval.lower is not None and interval.upper is not None:
        below, above = mean - interval.lower * scale, interval.upper * scale - mean
        axes.errorbar(
            [place], [mean], [[below], [above]], color=_COLOURS[side], linewidth=2, capsize=4, capthick=2, fmt="none"
        )
    axes.plot([place], [mean], _MARKERS[side], color=_COLOURS[side], markersize=7, mew=1, mec=_COLOURS["text"])


def _of_launches(series: _Series, measurements: Measurements, side: Side) -> Interval:
    """The mean of the launches' medians: a launch is the replicate, not a request."""
    medians = [max(median(values), _SHORTEST) for launch in measurements.of(side) if (values := series.values(launch))]
    return mean_interval(medians)


def _spread(index: int) -> float:
    """From -0.5 to 0.5, evenly filled at every length: the van der Corput sequence. The same dots at every drawing."""
    value, part = 0.0, 0.5
    number = index + 1
    while number:
        value += part * (number & 1)
        number >>= 1
        part /= 2
    return value - 0.5


def _short(compared: Comparison, between: str = "\n") -> str:
    """A metric's label, its second half on a line of its own."""
    return compared.metric.label.replace(" (", f"{between}(")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _means(label: str, metric: Metric, means: Mapping[Side, Interval]) -> str:
    told = (f"{side} {interval_text(interval, metric.scale)} {metric.unit}" for side, interval in means.items())
    return f"{_capital(label)}: {', '.join(told)}"


def _svg(figure: Any, prefix: str) -> str:
    """The figure as an SVG element for a page: colours as variables, names with the prefix, no size of its own."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", dpi=200, metadata={"Date": None, "Creator": None})
    return _for_page(stream.getvalue(), prefix, _COLOURS)


def _for_page(text: str, prefix: str, colours: Mapping[str, str]) -> str:
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    head, rest = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    rest = re.sub(r'\bid="', f'id="{prefix}-', rest)
    rest = re.sub(r'href="#', f'href="#{prefix}-', rest).replace("url(#", f"url(#{prefix}-")
    rest = rest.replace("xlink:href", "href")  # SVG 2; HTML needs no namespace then
    rest = re.sub(r"font: ([\d.]+px) [^;\"]+", r"font: \1 var(--font)", rest)
    rest = re.sub(r"font-family: [^;\"]+", "font-family: var(--font)", rest)
    for name, colour in colours.items():
        rest = rest.replace(colour, f"var(--plot-{name})")
    return f'<svg {box[0] if box else ""} aria-hidden="true" focusable="false">{rest}'.rstrip()
