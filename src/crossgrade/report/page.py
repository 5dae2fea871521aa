"""The document of a run as one HTML page that needs nothing else: no script, no network, no second file."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from importlib import resources
from typing import Any

from crossgrade import __version__
from crossgrade.report.document import Document, shown_figures
from crossgrade.report.visible import visible


def render_page(document: Document) -> str:
    """The page. matplotlib is loaded only where there is something to draw.

    Everything that comes from elsewhere is escaped by the template engine, after what cannot be shown was written out;
    only the plots are let through as they are. The page's own policy forbids every script and every load besides.
    """
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(_template),
    )
    environment.filters |= {
        "when": when,
        "length_of_time": length_of_time,
        "code": _code,
        "as_json": lambda value: json.dumps(value, ensure_ascii=False, default=str, indent=1),
    }
    page = environment.get_template("report.html.j2")
    return page.render(
        document=document,
        plots=[_plots(document, index) for index in range(len(document.benchmarks))],
        figures=shown_figures,
        span=_span(document),
        version=__version__,
    )


def _plots(document: Document, index: int) -> list[Mapping[str, Any]]:
    from markupsafe import Markup

    from crossgrade.report.plots import benchmark_plots

    return [
        {**vars(plot), "svg": Markup(plot.svg)}  # noqa: S704  # ours: matplotlib escapes the texts in it
        for plot in benchmark_plots(document.benchmarks[index], f"p{index}")
    ]


def _template(name: str) -> str:
    return resources.files("crossgrade.report").joinpath("templates").joinpath(name).read_text(encoding="utf-8")


def _shown(value: Any) -> Any:
    """Every expression of the template goes through this before it is escaped."""
    return visible(value) if type(value) is str else value


def _code(text: str) -> Any:
    """What stands between backticks as code; the rest as it is. Both are escaped."""
    from markupsafe import Markup, escape

    parts = visible(text).split("`")
    if len(parts) % 2 == 0:  # one that nobody closed is only a character
        return visible(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else escape(part) for index, part in enumerate(parts)
    )


def _span(document: Document) -> float:
    """How many seconds the timeline is wide: to the end of the run, and of its last step."""
    last = max((step.began + step.seconds for step in document.steps), default=0.0)
    whole = document.ended - document.started if document.ended is not None and document.started is not None else 0.0
    return max(last, whole, 1e-3)


def when(seconds: float | None) -> str:
    """`2026-12-02 19:07:20 UTC`."""
    return "not known" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def length_of_time(seconds: float | None) -> str:
    """`0.07 s`, `43.7 s`, `12 min 5 s`, `1 h 2 min`; `not known` for None."""
    if seconds is None:
        return "not known"
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left} min" if hours else f"{minutes} min {rest} s"
