"""What a load measured (`LoadResult`), as data. Pure; times are seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from crossgrade.bench.load_profile import LoadProfile
from crossgrade.bench.statistics import median, percentile
from crossgrade.jsontype import JSON

if TYPE_CHECKING:
    from crossgrade.bench.acceptance import Acceptance

__all__ = ["ErrorKind", "LoadProfile", "LoadResult", "RequestSample"]

ErrorKind = Literal[
    "connect",  # no connection
    "disconnected",  # the connection ended before the answer began
    "http_status",  # an answer other than 200
    "server_error",  # an error told inside the stream, or an aborted generation
    "malformed_stream",  # not server-sent events, or events that are not the API's JSON
    "truncated_stream",  # the stream ended without [DONE]
    "empty_output",  # a stream in good order without one token
    "nonsense_output",  # text that stands for numbers that are none, such as `!!!!!!!!`
    "timeout",  # the request took longer than the profile allows
    "not_sent",  # in an open loop: too many others were in flight or waiting when it was due
    "other_tool",  # what another load tool calls an error
]

NEAR_CEILING = 0.5  # of what the client can do: from here on a note says so
LATE_SECONDS = 0.01  # a request of an open loop that is sent this much later than it was due is worth a note


@dataclass(frozen=True)
class RequestSample:
    """One request.

    `started` counts from the start of the load; `time_to_first_token` and `end_to_end` from the request's own start,
    which in an open loop is the moment when it was due; it was sent `sent_late` seconds after that.
    `inter_token_latencies` are between chunks that carry text: a server that sends several tokens in a chunk has fewer
    of them than tokens. `output_tokens` is what the server's `usage` says; without it, the number of chunks
    (`counted_by`). `input_tokens` and, of those, `cached_tokens` are the server's counts too.
    """

    index: int
    started: float
    end_to_end: float
    time_to_first_token: float | None
    inter_token_latencies: tuple[float, ...]
    output_tokens: int
    chunks: int
    counted_by: Literal["usage", "chunks"]
    error: ErrorKind | None = None
    detail: str = ""
    sent_late: float = 0.0
    input_tokens: int | None = None
    cached_tokens: int | None = None

    def to_json(self) -> dict[str, JSON]:
        first = self.time_to_first_token
        return {
            "index": self.index,
            "started": round(self.started, 6),
            "end_to_end": round(self.end_to_end, 6),
            "time_to_first_token": None if first is None else round(first, 6),
            "inter_token_latencies": [round(latency, 6) for latency in self.inter_token_latencies],
            "output_tokens": self.output_tokens,
            "chunks": self.chunks,
            "counted_by": self.counted_by,
            "error": self.error,
            "detail": self.detail,
            "sent_late": round(self.sent_late, 6),
            "input_tokens": self.input_tokens,
            "cached_tokens": self.cached_tokens,
        }


@dataclass(frozen=True)
class LoadResult:
    """What one load measured.

    `samples` are the measured requests in the order of their start. `other_errors` are the failed ones among
    those that are not measured (warm-up, and what keeps the concurrency up until the last measured request
    ends). The window is from the start of the first measured request to the end of the last one;
    `window_tokens` are all tokens that arrived in it, of whichever request. `acceptance` is of speculative decoding,
    None where the server tells nothing about it. `figures` are those that another load tool gives itself, by our names.
    `client_ceiling`: tokens/s that the client itself can take in on this machine (`bench.ceiling`); None: not measured.
    """

    profile: LoadProfile
    samples: tuple[RequestSample, ...]
    other_errors: tuple[RequestSample, ...]
    window_seconds: float
    window_tokens: float
    acceptance: Acceptance | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    client_ceiling: float | None = None

    @classmethod
    def joined(cls, profile: LoadProfile, parts: Sequence[LoadResult]) -> LoadResult:
        """One result of several loads on the same launch; samples are numbered on, windows added up."""
        samples = [sample for part in parts for sample in part.samples]
        return cls(
            profile=profile,
            samples=tuple(replace(sample, index=index) for index, sample in enumerate(samples)),
            other_errors=tuple(sample for part in parts for sample in part.other_errors),
            window_seconds=sum(part.window_seconds for part in parts),
            window_tokens=sum(part.window_tokens for part in parts),
            acceptance=next((part.acceptance for part in reversed(parts) if part.acceptance), None),
            client_ceiling=next((part.client_ceiling for part in parts), None),
        )

    @property
    def failed(self) -> tuple[RequestSample, ...]:
        """All requests with an error, measured or not."""
        return tuple(sample for sample in self.samples if sample.error) + self.other_errors

    @property
    def succeeded(self) -> tuple[RequestSample, ...]:
        return tuple(sample for sample in self.samples if not sample.error)

    @property
    def errors_by_kind(self) -> dict[str, int]:
        return dict(Counter(str(sample.error) for sample in self.failed))

    @property
    def output_tokens_per_second(self) -> float:
        return self.window_tokens / self.window_seconds if self.window_seconds > 0 else 0.0

    @property
    def total_tokens_per_second(self) -> float | None:
        """Output, and the input of the measured requests that succeeded; None where the server does not count input."""
        inputs = [sample.input_tokens for sample in self.succeeded]
        if not inputs or self.window_seconds <= 0 or None in inputs:
            return None
        return self.output_tokens_per_second + sum(filter(None, inputs)) / self.window_seconds

    @property
    def requests_per_second(self) -> float:
        return len(self.succeeded) / self.window_seconds if self.window_seconds > 0 else 0.0

    @property
    def times_to_first_token(self) -> list[float]:
        return [sample.time_to_first_token for sample in self.succeeded if sample.time_to_first_token is not None]

    @property
    def inter_token_latencies(self) -> list[float]:
        return [latency for sample in self.succeeded for latency in sample.inter_token_latencies]

    @property
    def ends_to_end(self) -> list[float]:
        return [sample.end_to_end for sample in self.succeeded]

    @property
    def count_mismatches(self) -> int:
        """How many requests have a `usage` that differs from their number of chunks."""
        return sum(sample.counted_by == "usage" and sample.output_tokens != sample.chunks for sample in self.succeeded)

    def metrics(self) -> dict[str, float]:
        """The figures that can be judged: tokens/s, requests/s, and seconds. Without a sample: left out."""
        found = {}
        if self.succeeded:
            found["output_tokens_per_second"] = self.output_tokens_per_second
            found["requests_per_second"] = self.requests_per_second
        if (total := self.total_tokens_per_second) is not None:
            found["total_tokens_per_second"] = total
        if self.acceptance:
            found["accept_length"] = self.acceptance.length
        speeds = [sample.output_tokens / sample.end_to_end for sample in self.succeeded if sample.end_to_end > 0]
        if speeds:
            # What the fastest tenth of the requests reach hardly depends on a machine's other work, which takes
            # some of the time away, but not all of it.
            found["stream_tokens_per_second_median"] = median(speeds)
            found["stream_tokens_per_second_p90"] = percentile(speeds, 90)
        series: Mapping[str, Sequence[float]] = {
            "ttft": self.times_to_first_token,
            "itl": self.inter_token_latencies,
            "end_to_end": self.ends_to_end,
        }
        for name, values in series.items():
            if values:
                found[f"{name}_median"] = median(values)
                found[f"{name}_p90"] = percentile(values, 90)
                found[f"{name}_p99"] = percentile(values, 99)
        return {**found, **self.figures}

    def notes(self) -> list[str]:
        """What a reader of the figures should know."""
        notes = []
        unsent = [sample for sample in self.failed if sample.error == "not_sent"]
        sent = len(self.samples) - sum(sample.error == "not_sent" for sample in self.samples)
        if len(self.samples) < self.profile.requests:
            notes.append(
                f"stopped after {len(self.failed)} failed requests: "
                f"{sent} of {self.profile.requests} measured requests were sent"
            )
        if unsent:
            notes.append(
                f"{len(unsent)} requests could not be sent: {self.profile.most_in_flight} were in flight and "
                f"{self.profile.queue_limit} waited; the server does not keep up with {self.profile.rate:g} requests/s"
            )
        late = [sample.sent_late for sample in self.samples if sample.sent_late > LATE_SECONDS]
        if late:
            notes.append(
                f"{len(late)} of {len(self.samples)} requests were sent late, by up to {1000 * max(late):.0f} ms; "
                "their latencies count from when they were due"
            )
        if self.client_ceiling and self.output_tokens_per_second > NEAR_CEILING * self.client_ceiling:
            notes.append(
                f"{self.output_tokens_per_second:,.0f} tokens/s are near what the client itself can take in here "
                f"({self.client_ceiling:,.0f}): it may be what limits"
            )
        if self.count_mismatches:
            notes.append(
                f"in {self.count_mismatches} of {len(self.succeeded)} requests the server's usage differs "
                f"from the number of chunks; tokens are counted by usage, latencies are between chunks"
            )
        return notes

    def to_json(self) -> dict[str, JSON]:
        return {
            "profile": self.profile.to_json(),
            "window_seconds": round(self.window_seconds, 6),
            "window_tokens": round(self.window_tokens, 3),
            "metrics": {name: round(value, 6) for name, value in self.metrics().items()},
            "errors": dict(self.errors_by_kind),
            "notes": list(self.notes()),
            "client_ceiling": None if self.client_ceiling is None else round(self.client_ceiling, 1),
            "acceptance": self.acceptance.to_json() if self.acceptance else None,
            "samples": [sample.to_json() for sample in self.samples],
            "other_errors": [sample.to_json() for sample in self.other_errors],
        }
