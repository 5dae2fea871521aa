"""How many tokens each step of speculative decoding brought, where the server tells it.

SGLang tells it in three places (read in the sources of 0.5.9 and 0.5.23): `spec_verify_ct` in the `meta_info` of
`/generate`, the number of steps of that request (tokens by steps is the acceptance length, the bonus token included);
`avg_spec_accept_length` in `internal_states` of `/server_info` (`/get_server_info` in older ones), since the server's
start; and the gauge `sglang:spec_accept_length` of `/metrics`, which is about the last interval of its log only.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from crossgrade.bench.answers import Answer
from crossgrade.jsontype import JSON

if TYPE_CHECKING:
    import aiohttp

ASK_SECONDS = 5.0
MOST_BYTES = 16 << 20
_GAUGE = re.compile(r"^sglang:spec_accept_length(?:\{[^}\n]*\})?\s+([0-9.eE+-]+)", re.MULTILINE)

Source = Literal["requests", "server_info", "metrics"]


@dataclass(frozen=True)
class Acceptance:
    """`length`: tokens for each step, at least 1; `source`: whether of the measured `requests`, or what the server says
    of all since its start (`server_info`) or of the last moments (`metrics`)."""

    length: float
    source: Source

    def to_json(self) -> dict[str, JSON]:
        return {"length": round(self.length, 4), "source": self.source}


def acceptance_of_requests(answers: Sequence[Answer]) -> Acceptance | None:
    """All tokens by all steps; None when an answer does not tell its steps."""
    pairs = [(answer.usage, answer.verify_steps) for answer in answers]
    known = [(tokens, steps) for tokens, steps in pairs if tokens and steps]
    if not known or len(known) < len(pairs):
        return None
    return Acceptance(sum(tokens for tokens, _ in known) / sum(steps for _, steps in known), "requests")


async def acceptance_of_server(session: aiohttp.ClientSession) -> Acceptance | None:
    """What the server says of itself; None when it says nothing, or does not answer within some seconds."""
    for path in ("/server_info", "/get_server_info"):
        text = await _get(session, path)
        if text is not None:
            if (length := parse_server_info(text)) is not None:
                return Acceptance(length, "server_info")
            break
    text = await _get(session, "/metrics")
    length = None if text is None else parse_metrics(text)
    return None if length is None else Acceptance(length, "metrics")


def parse_server_info(text: str) -> float | None:
    """The mean over the states of all ranks that have one."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    states = told.get("internal_states") if isinstance(told, dict) else None
    if not isinstance(states, list):
        return None
    found = [state.get("avg_spec_accept_length") for state in states if isinstance(state, dict)]
    lengths = [float(length) for length in found if isinstance(length, int | float) and _sensible(length)]
    return sum(lengths) / len(lengths) if lengths else None


def parse_metrics(text: str) -> float | None:
    """From the text format of Prometheus: the mean over the gauges that are above 0 (0: no step yet)."""
    lengths = []
    for match in _GAUGE.finditer(text):
        try:
            length = float(match[1])
        except ValueError:
            continue
        if _sensible(length):
            lengths.append(length)
    return sum(lengths) / len(lengths) if lengths else None


def _sensible(length: float) -> bool:
    return math.isfinite(length) and length > 0


async def _get(session: aiohttp.ClientSession, path: str) -> str | None:
    import aiohttp

    try:
        async with session.get(path, timeout=aiohttp.ClientTimeout(ASK_SECONDS)) as response:
            if response.status != 200:
                return None
            return (await response.content.read(MOST_BYTES)).decode("utf-8", "replace")
    except (aiohttp.ClientError, OSError, ValueError, asyncio.TimeoutError):
        return None
