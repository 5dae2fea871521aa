"""What other load tools write, as our `LoadResult`. Pure.

Read from files that SGLang's bench_serving 0.5.9 and 0.5.23, guidellm 0.8.1 and aiperf 0.13.0 wrote (tests/data).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from crossgrade.bench.acceptance import Acceptance
from crossgrade.bench.load_profile import LoadProfile, Tool
from crossgrade.bench.samples import ErrorKind, LoadResult, RequestSample
from crossgrade.errors import TaskError

Report = Mapping[str, Any]
MILLISECOND = 1e-3
NANOSECOND = 1e-9
DETAIL_CHARACTERS = 500


class ToolReportError(TaskError, ValueError):
    """A report that another tool wrote and that we cannot read."""


def parse_report(tool: Tool, text: str, profile: LoadProfile) -> LoadResult:
    """The result of a load that `tool` put on a server. Raises ToolReportError."""
    try:
        return _PARSERS[tool](text, profile)
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ToolReportError(f"the report of {tool} is not as expected ({reason})", remedy=_REMEDY) from error
    except ValueError as error:
        raise ToolReportError(f"the report of {tool} cannot be read: {error}", remedy=_REMEDY) from error


_REMEDY = "The versions whose reports are known are named in docs/validation.md; `tool: builtin` needs none."


def parse_sglang(text: str, profile: LoadProfile) -> LoadResult:
    """The last line of what `bench_serving --output-file F --output-details` appends; seconds.

    Its details do not say when a request began: `started` is 0.
    """
    told = json.loads(text.strip().splitlines()[-1])
    columns = [told[name] for name in ("ttfts", "itls", "output_lens", "input_lens", "errors")]
    samples = []
    for index, (first, gaps, output, given, error) in enumerate(zip(*columns, strict=True)):
        latencies = tuple(_number(gap) for gap in gaps)
        failed = bool(error) or not output
        samples.append(
            _sample(
                index,
                end_to_end=_number(first) + sum(latencies),
                first=None if failed else _number(first),
                latencies=latencies,
                output=int(output),
                given=int(given),
                error=("other_tool" if error else "empty_output") if failed else None,
                detail=str(error),
            )
        )
    accepted = told.get("accept_length")
    return LoadResult(
        profile,
        tuple(samples),
        (),
        window_seconds=_number(told["duration"]),
        window_tokens=_number(told["total_output_tokens"]),
        acceptance=Acceptance(_number(accepted), "server_info") if accepted else None,
    )


def parse_guidellm(text: str, profile: LoadProfile) -> LoadResult:
    """The JSON of `guidellm run --output kind=json`: one benchmark. Of the latencies between tokens it gives each
    request's mean only; their median and percentiles over all tokens are taken from its own table."""
    (told,) = json.loads(text)["benchmarks"]
    requests = told["requests"]
    began = _number(told["start_time"])
    samples = []
    for status in ("successful", "errored", "incomplete"):
        for request in requests[status] or ():
            failed = status != "successful"
            sent = request["info"]["timings"]["request_start"]
            latency = request.get("request_latency")
            first = request.get("time_to_first_token_ms")
            samples.append(
                _sample(
                    0,
                    started=_number(sent) - began if sent is not None else 0.0,
                    end_to_end=_number(latency) if latency is not None else 0.0,
                    first=None if failed or first is None else _number(first) * MILLISECOND,
                    output=int(request.get("output_tokens") or 0),
                    given=_whole_or_none(request.get("prompt_tokens")),
                    error="other_tool" if failed else None,
                    detail=str(request["info"].get("error") or status) if failed else "",
                )
            )
    between = told["metrics"]["inter_token_latency_ms"]["successful"]
    figures: dict[str, float] = {}
    if between["count"]:
        figures = {
            "itl_median": _number(between["median"]) * MILLISECOND,
            "itl_p90": _number(between["percentiles"]["p90"]) * MILLISECOND,
            "itl_p99": _number(between["percentiles"]["p99"]) * MILLISECOND,
        }
    return LoadResult(
        profile,
        _numbered(samples),
        (),
        window_seconds=_number(told["duration"]),
        window_tokens=float(sum(sample.output_tokens for sample in samples)),
        figures=figures,
    )


def parse_aiperf(text: str, profile: LoadProfile) -> LoadResult:
    """`profile_export.jsonl` of aiperf: a line for each request, milliseconds, moments in nanoseconds."""
    records = [json.loads(line) for line in text.splitlines() if line.strip()]
    measured = [record for record in records if record["metadata"]["benchmark_phase"] == "profiling"]
    if not measured:
        raise ValueError("it holds no measured request")
    began = min(int(record["metadata"]["request_start_ns"]) for record in measured)
    ended = max(int(record["metadata"]["request_end_ns"]) for record in measured)
    samples = []
    for record in measured:
        metadata, metrics = record["metadata"], record["metrics"]
        problem = record.get("error") or ({"type": "cancelled"} if metadata.get("was_cancelled") else None)
        kind: ErrorKind | None = None
        if problem:
            kind = "http_status" if problem.get("code") else "other_tool"
        values = {name: metrics[name]["value"] for name in _OF_AIPERF if name in metrics}
        first = values.get("time_to_first_token")
        took = int(metadata["request_end_ns"]) - int(metadata["request_start_ns"])
        samples.append(
            _sample(
                0,
                started=(int(metadata["request_start_ns"]) - began) * NANOSECOND,
                end_to_end=took * NANOSECOND,
                first=None if first is None else _number(first) * MILLISECOND,
                latencies=tuple(_number(gap) * MILLISECOND for gap in values.get("inter_chunk_latency", ())),
                output=int(values.get("output_sequence_length", 0)),
                given=_whole_or_none(values.get("input_sequence_length")),
                error=kind,
                detail=" ".join(str(problem.get(name, "")) for name in ("code", "message", "type")) if problem else "",
            )
        )
    return LoadResult(
        profile,
        _numbered(samples),
        (),
        window_seconds=(ended - began) * NANOSECOND,
        window_tokens=float(sum(sample.output_tokens for sample in samples)),
    )


_OF_AIPERF = ("time_to_first_token", "inter_chunk_latency", "output_sequence_length", "input_sequence_length")
_PARSERS: Mapping[Tool, Callable[[str, LoadProfile], LoadResult]] = {
    "sglang": parse_sglang,
    "guidellm": parse_guidellm,
    "aiperf": parse_aiperf,
}


def _sample(
    index: int,
    *,
    end_to_end: float,
    first: float | None,
    output: int,
    given: int | None,
    error: ErrorKind | None,
    detail: str,
    started: float = 0.0,
    latencies: tuple[float, ...] = (),
) -> RequestSample:
    return RequestSample(
        index=index,
        started=started,
        end_to_end=end_to_end,
        time_to_first_token=first,
        inter_token_latencies=latencies,
        output_tokens=output,
        chunks=len(latencies) + 1 if latencies else output,
        counted_by="usage",
        error=error,
        detail=detail[:DETAIL_CHARACTERS],
        input_tokens=given,
    )


def _numbered(samples: Sequence[RequestSample]) -> tuple[RequestSample, ...]:
    ordered = sorted(samples, key=lambda sample: sample.started)
    return tuple(replace(sample, index=index) for index, sample in enumerate(ordered))


def _number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise ValueError(f"{str(value)[:40]!r} is no number")


def _whole_or_none(value: object) -> int | None:
    return None if value is None else int(_number(value))
