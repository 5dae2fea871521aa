"""The argument `healthy` of `activate`: what a service must show after the switch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext
from crossgrade.modules.server import read_mapping
from crossgrade.playbook.arguments import argument

if TYPE_CHECKING:
    from crossgrade.bench.health_looks import Watched


@dataclass(frozen=True)
class HealthyArguments:
    """How it is watched that the service lives on the new generation."""

    url: str = argument(doc="An address that answers 200 when the service can serve (http only).")
    stay: float = argument(doc="Seconds that it must stay healthy, without a restart.", default=30.0, name="for")
    every: float = argument(doc="Seconds between two looks.", default=2.0)
    start_timeout: float = argument(doc="Seconds until it must be healthy for the first time.", default=600.0)
    failures: int = argument(doc="Failed looks in a row that count as down.", default=3)
    max_restarts: int = argument(doc="Restarts that are put up with; one more is a crash loop.", default=2)
    unit: str = argument(doc="Its systemd unit, whose own count of restarts is looked at too.", default="")


def read_healthy(values: Mapping[str, Any]) -> Watched | None:
    """What to watch, None when nothing was asked for. Raises TaskError for what makes no sense."""
    if not values:
        return None
    from urllib.parse import urlsplit

    from crossgrade.bench.health_looks import Watched
    from crossgrade.gates.health import HealthRules

    given = read_mapping(HealthyArguments, values, "activate: healthy")
    address = urlsplit(given.url)
    try:
        known = address.scheme == "http" and bool(address.hostname) and (address.port is None or address.port > 0)
    except ValueError:  # a port that is no number
        known = False
    if not known:
        raise TaskError(
            f"activate: healthy: url must be an http address, not {given.url!r}",
            remedy="Such as http://127.0.0.1:30000/health.",
        )
    if given.every <= 0 or given.stay < 0 or given.start_timeout < 0 or given.failures < 1 or given.max_restarts < 0:
        raise TaskError(
            "activate: healthy: times must be positive, `failures` at least 1 and `max_restarts` at least 0"
        )
    rules = HealthRules(given.stay, given.start_timeout, given.failures, given.max_restarts)
    return Watched(given.url, given.every, given.unit, rules)


def watch(watched: Watched, context: ApplyContext) -> float:
    """Wait until the service is steadily healthy; returns since when, in seconds since 1970.

    Raises TaskError when it is not.
    """
    from crossgrade.bench.health_looks import watch_until_decided

    judgement = watch_until_decided(watched, lambda seen: context.progress(f"{watched.url}: {seen.reason}"))
    if judgement.health != "healthy":
        raise TaskError(
            f"{judgement.health}: {watched.url}: {judgement.reason}",
            remedy=f"{judgement.evidence['looks']} looks, {judgement.evidence['failed_looks']} of them failed, "
            f"{judgement.evidence['restarts']} restarts. The service's own log says why.",
        )
    return time.time() - float(str(judgement.evidence["healthy_seconds"]))
