"""The page, JUnit XML and the Prometheus textfile: whole, in order by other people's parsers, harmless."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped, TestSuite
from prometheus_client.parser import text_string_to_metric_families
from tests.support.run_reports import (
    FAST,
    SAMPLES,
    Recorder,
    benchmarked,
    hostile_document,
    pairs_of,
    passed,
    sample_lines,
)

from crossgrade.engine.results import TaskResult
from crossgrade.gates.benchmark import METRICS
from crossgrade.gates.verdict import Verdict
from crossgrade.report.document import Document, make_document
from crossgrade.report.junit import render_junit
from crossgrade.report.measurements import read_samples
from crossgrade.report.page import length_of_time, render_page
from crossgrade.report.prometheus import _UNITS, render_prometheus

VOID = ("meta", "br", "img", "link", "hr", "input")


class Reader(HTMLParser):
    """Every element and its attributes; fails at an end tag that closes nothing."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def said(self) -> str:
        return " ".join(" ".join(self.text).split())


def measured(requests: int = 5, concurrency: int = 4) -> Document:
    verdict, samples = benchmarked(FAST, concurrency, requests)
    return Recorder().gate(passed()).gate(verdict, name="Speed").end().document({SAMPLES: samples})


def alone() -> Document:
    """The new server by itself, against a floor."""
    lines = sample_lines(pairs_of(FAST))
    new = [json.dumps({"number": n, "new": json.loads(line)["new"]}) for n, line in enumerate(lines[1:], 1)]
    figures: dict[str, Any] = {
        "samples": SAMPLES,
        "limits": {"output_tokens_per_second": {"limit": 89.5, "outcome": "passed"}},
    }
    verdict = Verdict("benchmark", "passed", "above the floor", (), figures)
    return Recorder().gate(verdict, name="Speed").end().document({SAMPLES: read_samples([lines[0], *new])})


DOCUMENTS: dict[str, Callable[[], Document]] = {
    "hostile": hostile_document,
    "empty": lambda: make_document({}, {}),
    "measured": measured,
    "alone": alone,
    "plain": lambda: Recorder().task("A", TaskResult("ok")).end().document(),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_page_is_well_formed_and_loads_and_runs_nothing(name: str) -> None:
    page = Reader(render_page(DOCUMENTS[name]()))
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "iframe", "object", "embed", "link", "base", "form", "a"}
    assert all(not name.startswith("on") for _, attributes in page.elements for name in attributes)
    loads = [
        value
        for _, attributes in page.elements
        for key, value in attributes.items()
        if key in ("src", "href", "xlink:href", "action", "poster")
        and not (value or "").startswith(("#", "data:image/"))
    ]
    assert loads == []
    policies = [a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert (policies[0] or "").startswith("default-src 'none'")
    names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(names) == len(set(names))


def test_hostile_text_is_shown_as_text() -> None:
    text = render_page(hostile_document())
    assert "<script>" not in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\ud800-\udfff]", text)
    said = Reader(text).said
    assert "<script>alert(1)</script>" in said
    assert "{{ 7 * 7 }}" in said
    assert r"\x1b[31m\u202eevil\ud800\x00" in said


def test_a_gate_that_was_not_run_stands_out() -> None:
    verdict = Verdict("server", "not run", "no driver")
    text = render_page(Recorder().gate(verdict, name="Serves", failed=False).end(gates_not_run=["Serves"]).document())
    assert "0 passed, 0 failed, 1 not run" in Reader(text).said
    assert "A gate that did not run did not pass." in text
    assert 'class="gate not-run"' in text


def test_plots_have_every_sample_words_and_a_table() -> None:
    page = Reader(render_page(measured()))
    figures = [tag for tag, _ in page.elements].count("figure")
    pictures = [attributes for _, attributes in page.elements if attributes.get("role") == "img"]
    assert figures == len(pictures) == 5
    assert all((picture["aria-label"] or "").strip() for picture in pictures)
    assert page.said.count("The numbers") == 5
    assert "Concurrency 4" in page.said
    assert "(180 old and 180 new)" in page.said  # tokens
    # 5 requests in 4 launches of 2 sides, each a dot in two plots, besides the dots of launches
    marks = [
        attributes for tag, attributes in page.elements if tag == "use" and "--plot-" in (attributes["style"] or "")
    ]
    assert len(marks) >= 2 * 40


def test_the_new_server_alone_has_plots_too() -> None:
    page = Reader(render_page(alone()))
    assert [tag for tag, _ in page.elements].count("figure") == 4
    assert "floor 89.5" in page.said
    assert "launches of the new server alone" in page.said
    assert "(180 new)" in page.said


def test_plots_take_their_colours_from_the_page() -> None:
    text = render_page(measured())
    pictures = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert "var(--plot-old)" in pictures
    assert "var(--plot-new)" in pictures
    assert not re.search(r"#0102\w\w", pictures)
    assert "DejaVu" not in pictures


def test_many_samples_become_a_picture_and_the_page_stays_small() -> None:
    text = render_page(measured(requests=1000))
    assert "data:image/png;base64," in text
    assert len(text) < 1_500_000


def test_a_page_without_a_benchmark_loads_no_plotting_library() -> None:
    code = (
        "import sys; from tests.support.run_reports import Recorder, passed; from crossgrade.report.page import *;"
        "render_page(Recorder().gate(passed()).end().document()); print('matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "not known"), (0.0, "0.00 s"), (59.94, "59.9 s"), (60.0, "1 min 0 s"), (3725.0, "1 h 2 min")],
)
def test_lengths_of_time(seconds: float | None, text: str) -> None:
    assert length_of_time(seconds) == text


# ---- JUnit


def suites(document: Document) -> dict[str, TestSuite]:
    return {suite.name: suite for suite in JUnitXml.fromstring(render_junit(document).encode())}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_junit_is_read_by_others(name: str) -> None:
    for suite in suites(DOCUMENTS[name]()).values():
        cases = list(suite)
        results = [result for case in cases for result in case.result]
        assert suite.tests == len(cases)
        assert suite.failures == sum(isinstance(result, Failure) for result in results)
        assert suite.errors == sum(isinstance(result, Error) for result in results)
        assert suite.skipped == sum(isinstance(result, Skipped) for result in results)


def test_junit_never_calls_a_gate_passed_that_was_not_run() -> None:
    run = Recorder().gate(passed()).gate(Verdict("smoke", "failed", "no module"))
    run.gate(Verdict("server", "not run", "no driver"), failed=False)
    run.emit("rollback_failed", task="x", name="A", what="disk", by_hand=["rm x"])
    found = suites(run.end(3, outcome="FAILED, and the rollback failed too").document())
    gates = {case.name: [type(result) for result in case.result] for case in found["crossgrade.gates"]}
    assert gates == {"abi": [], "smoke": [Failure], "server": [Skipped]}
    tasks = {case.name: [type(result) for result in case.result] for case in found["crossgrade.tasks"]}
    assert tasks["smoke"] == [Failure]
    assert tasks["The run came to a good end"] == [Error]


# ---- Prometheus


@pytest.mark.parametrize("name", DOCUMENTS)
def test_prometheus_text_is_read_by_its_own_parser(name: str) -> None:
    text = render_prometheus(DOCUMENTS[name]())
    families = list(text_string_to_metric_families(text))
    assert "crossgrade_run_success" in {family.name for family in families}
    samples = [(sample.name, tuple(sorted(sample.labels.items()))) for each in families for sample in each.samples]
    assert len(samples) == len(set(samples))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_promtool_finds_no_fault(name: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (apt: prometheus)")
    text = render_prometheus(DOCUMENTS[name]())
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_metric_has_a_unit_that_prometheus_knows() -> None:
    assert {metric.unit for metric in METRICS.values()} <= set(_UNITS)


def test_prometheus_values() -> None:
    found = {
        (sample.name, sample.labels.get("metric", sample.labels.get("task", "")), sample.labels.get("side", "")): sample
        for family in text_string_to_metric_families(render_prometheus(measured()))
        for sample in family.samples
    }
    assert found["crossgrade_run_success", "", ""].value == 1
    assert found["crossgrade_gate_passed", "Speed", ""].value == 1
    speed = found["crossgrade_benchmark_tokens_per_second", "output_tokens_per_second", "new"]
    assert speed.value == pytest.approx(101.24, abs=0.01)
    assert speed.labels["concurrency"] == "4"
    assert 0.001 < found["crossgrade_benchmark_seconds", "ttft_median", "old"].value < 0.1  # seconds, not ms
    assert not any(name == "crossgrade_run_downtime_seconds" for name, _, _ in found)  # not known: no sample
