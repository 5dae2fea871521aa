"""How true the load client's times are: against a server that notes when it sent each token (`paced_echo`)."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossgrade.bench.load import load
from crossgrade.bench.load_profile import LoadProfile
from crossgrade.bench.machine import processor_times, share_of_others
from crossgrade.bench.planned import prompts
from crossgrade.bench.samples import LoadResult
from crossgrade.bench.server_process import ServerSpec, launch
from crossgrade.bench.statistics import median, percentile
from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON


@dataclass(frozen=True)
class ClientPrecision:
    """Errors of inter-token times in seconds, without their sign: the client's against the sender's own.

    `times` is how many were compared, `tokens_per_second` what arrived; `by_kernel` whether the kernel's time stamps
    were used; `others` the share of the processors that other programs took meanwhile.
    """

    tokens_per_second: float
    connections: int
    times: int
    median: float
    percentile_99: float
    largest: float
    by_kernel: bool
    others: float | None

    def to_json(self) -> dict[str, JSON]:
        return {
            "tokens_per_second": round(self.tokens_per_second, 1),
            "connections": self.connections,
            "times": self.times,
            "error_seconds": {
                "median": round(self.median, 9),
                "p99": round(self.percentile_99, 9),
                "largest": round(self.largest, 9),
            },
            "by_kernel": self.by_kernel,
            "others": self.others,
        }


def measure_precision(
    folder: Path,
    *,
    tokens_per_second: float = 2000.0,
    connections: int = 64,
    seconds: float = 5.0,
    by_kernel: bool = True,
) -> ClientPrecision:
    """Stream from the paced echo, all connections at the same moments, for about `seconds`; its log goes to `folder`.

    Raises ServerStartError, and TaskError when a request failed.
    """
    pace = connections / tokens_per_second
    spec = ServerSpec(
        (sys.executable, "-m", "crossgrade.bench.paced_echo", "--port", "{port}", "--pace", str(pace)),
        environment=dict(os.environ),
        health_paths=("/v1/models",),
        start_timeout=30.0,
    )
    profile = LoadProfile(
        concurrency=connections,
        requests=2 * connections,
        warmup_requests=connections,
        max_tokens=max(2, round(seconds / 3 / pace)),  # three rounds, the first of them discarded
        prompts=tuple(f"stream {number}" for number in range(8 * connections)),
        model="echo",
    )
    with launch(spec, folder / "paced_echo.log") as server:
        before = processor_times(server.process.members())
        result = asyncio.run(load(server.base_url, profile, by_kernel=by_kernel))
        others = share_of_others(before, processor_times(server.process.members()))
        with urllib.request.urlopen(f"{server.base_url}/sent", timeout=60) as answer:  # noqa: S310 - started just now
            sent = json.load(answer)
    if result.failed:
        raise TaskError(f"the echo was not received whole: {result.failed[0].error}: {result.failed[0].detail}")
    errors = errors_of(result, sent)
    return ClientPrecision(
        tokens_per_second=result.output_tokens_per_second,
        connections=connections,
        times=len(errors),
        median=median(errors),
        percentile_99=percentile(errors, 99),
        largest=max(errors),
        by_kernel=by_kernel,
        others=others,
    )


def errors_of(result: LoadResult, sent: Mapping[str, Sequence[float]]) -> list[float]:
    """How far each measured time between two tokens is from that between their sending. Pure.

    `sent`: for each prompt the moments at which its tokens were sent; each prompt was sent once.
    """
    count = result.profile.warmup_requests + result.profile.requests
    order = list(itertools.islice(prompts(result.profile), count))
    errors = []
    for sample in result.samples:
        moments = sent[order[sample.index + result.profile.warmup_requests]]
        between = [later - earlier for earlier, later in itertools.pairwise(moments)]
        errors += [abs(true - measured) for true, measured in zip(between, sample.inter_token_latencies, strict=True)]
    return errors
