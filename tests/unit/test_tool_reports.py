"""Reports that other load tools really wrote (tests/data/README.md) give the figures that they give themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crossgrade.bench.load_profile import LoadProfile, Tool
from crossgrade.bench.other_tools import OtherToolError, run_other_tool, tool_arguments
from crossgrade.bench.tool_reports import ToolReportError, parse_report

DATA = Path(__file__).parents[1] / "data"
PROFILE = LoadProfile(concurrency=2, requests=24)


def recorded(name: str) -> str:
    return (DATA / "load_tools" / name).read_text()


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_bench_serving(version: str) -> None:
    text = (DATA / "sglang" / version / "bench_serving_details.jsonl").read_text()
    told = json.loads(text)
    result = parse_report("sglang", text, PROFILE)
    assert (len(result.succeeded), result.failed) == (8, ())
    metrics = result.metrics()
    assert metrics["output_tokens_per_second"] == pytest.approx(told["output_throughput"])
    assert metrics["total_tokens_per_second"] == pytest.approx(told["total_throughput"])
    assert metrics["requests_per_second"] == pytest.approx(told["request_throughput"])
    assert metrics["ttft_median"] * 1000 == pytest.approx(told["median_ttft_ms"])
    assert metrics["itl_median"] * 1000 == pytest.approx(told["median_itl_ms"])
    assert metrics["itl_p99"] * 1000 == pytest.approx(told["p99_itl_ms"])
    # It takes the end from its own clock, we add up what it lists.
    assert metrics["end_to_end_median"] * 1000 == pytest.approx(told["median_e2e_latency_ms"], rel=0.02)
    assert {sample.output_tokens for sample in result.samples} == {24}


def test_bench_serving_with_speculative_decoding_and_errors() -> None:
    told = json.loads((DATA / "sglang" / "0.5.23" / "bench_serving_details.jsonl").read_text())
    told["accept_length"] = 2.5
    told["errors"][3] = "Internal Server Error"
    told["output_lens"][4] = 0
    result = parse_report("sglang", json.dumps(told), PROFILE)
    assert result.errors_by_kind == {"other_tool": 1, "empty_output": 1}
    assert result.metrics()["accept_length"] == 2.5


def test_guidellm() -> None:
    text = recorded("guidellm-0.8.1.json")
    told = json.loads(text)["benchmarks"][0]
    result = parse_report("guidellm", text, PROFILE)
    assert (len(result.succeeded), result.errors_by_kind) == (20, {"other_tool": 1})
    assert "500" in result.failed[0].detail
    assert [sample.index for sample in result.samples] == list(range(21))
    metrics = result.metrics()
    assert metrics["ttft_median"] * 1000 == pytest.approx(
        told["metrics"]["time_to_first_token_ms"]["successful"]["median"], rel=0.01
    )
    assert metrics["itl_median"] == told["metrics"]["inter_token_latency_ms"]["successful"]["median"] / 1000
    assert metrics["output_tokens_per_second"] == pytest.approx(20 * 12 / told["duration"])


def test_aiperf() -> None:
    result = parse_report("aiperf", recorded("aiperf-0.13.0.jsonl"), PROFILE)
    assert (len(result.samples), result.errors_by_kind) == (24, {"http_status": 1})
    assert "out of memory" in result.failed[0].detail
    assert {len(sample.inter_token_latencies) for sample in result.succeeded} == {11}
    metrics = result.metrics()
    assert metrics["itl_median"] == pytest.approx(0.005, rel=0.2)  # the pace of the server that it measured
    assert metrics["total_tokens_per_second"] == pytest.approx(metrics["output_tokens_per_second"] * 20 / 12)


@pytest.mark.parametrize(
    ("tool", "text", "words"),
    [
        ("sglang", "", "not as expected"),
        ("sglang", "{}", "not as expected .KeyError: 'ttfts'"),
        ("sglang", "not JSON", "cannot be read"),
        ("guidellm", '{"benchmarks": []}', "cannot be read"),
        ("guidellm", '{"benchmarks": [3]}', "not as expected"),
        ("aiperf", "", "holds no measured request"),
        ("aiperf", '{"metadata": {"benchmark_phase": "warmup"}}', "holds no measured request"),
        ("aiperf", "[" * 100_000, "not as expected|cannot be read"),
    ],
)
def test_a_report_of_another_kind_is_named(tool: Tool, text: str, words: str) -> None:
    with pytest.raises(ToolReportError, match=words):
        parse_report(tool, text, PROFILE)


def test_numbers_that_are_none_are_refused() -> None:
    told = json.loads((DATA / "sglang" / "0.5.23" / "bench_serving_details.jsonl").read_text())
    told["duration"] = float("nan")
    with pytest.raises(ToolReportError, match="'nan' is no number"):
        parse_report("sglang", json.dumps(told), PROFILE)


def test_arguments_follow_the_profile_and_those_given_come_last(tmp_path: Path) -> None:
    profile = LoadProfile(tool="aiperf", rate=2.5, model="m", requests=3, warmup_requests=1, tool_arguments=("--x",))
    arguments = tool_arguments("http://127.0.0.1:1", profile, tmp_path)
    assert arguments[0] == "profile"
    assert arguments[-1] == "--x"
    assert arguments[arguments.index("--request-rate") + 1] == "2.5"
    lines = (tmp_path / "prompts.jsonl").read_text().splitlines()
    assert len(lines) == 4
    assert json.loads(lines[0])["output_length"] == 96


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (LoadProfile(tool="sglang", prompts=("a",)), "not handed our prompts"),
        (LoadProfile(tool="sglang", rate=1.0, arrivals="constant"), "at random moments only"),
        (LoadProfile(tool="guidellm", endpoint="generate"), "guidellm does not know SGLang's /generate"),
        (LoadProfile(tool="aiperf", endpoint="generate"), "aiperf does not know SGLang's /generate"),
    ],
)
def test_what_a_tool_cannot_do_is_said_before_it_is_started(profile: LoadProfile, words: str, tmp_path: Path) -> None:
    with pytest.raises(OtherToolError, match=words):
        tool_arguments("http://127.0.0.1:1", profile, tmp_path)


def test_a_tool_that_is_not_there_or_fails_or_writes_nothing() -> None:
    profile = LoadProfile(tool="aiperf", tool_command=("/nonexistent/aiperf",))
    with pytest.raises(OtherToolError, match="aiperf cannot be started"):
        run_other_tool("http://127.0.0.1:1", profile)
    with pytest.raises(OtherToolError, match=r"aiperf: .*exit"):
        run_other_tool("http://127.0.0.1:1", LoadProfile(tool="aiperf", tool_command=("false",)))
    with pytest.raises(OtherToolError, match="aiperf wrote no report"):
        run_other_tool("http://127.0.0.1:1", LoadProfile(tool="aiperf", tool_command=("true",)))
