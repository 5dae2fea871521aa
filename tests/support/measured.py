"""Samples and results of loads, as if measured."""

from __future__ import annotations

from crossgrade.bench.samples import LoadProfile, LoadResult, RequestSample

PROFILE = LoadProfile(requests=2, max_tokens=50)


class NoProcess:
    def members(self) -> tuple[int, ...]:
        return ()


def sample(index: int = 0, first: float = 0.02, latency: float = 0.002, tokens: int = 50) -> RequestSample:
    return RequestSample(
        index=index,
        started=0.1 * index,
        end_to_end=first + latency * (tokens - 1),
        time_to_first_token=first,
        inter_token_latencies=(latency,) * (tokens - 1),
        output_tokens=tokens,
        chunks=tokens,
        counted_by="usage",
    )


def result(speed: float, first: float = 0.02) -> LoadResult:
    samples = (sample(0, first), sample(1, first))
    return LoadResult(PROFILE, samples, (), window_seconds=1.0, window_tokens=speed)
