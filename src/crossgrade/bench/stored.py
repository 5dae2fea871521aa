"""Launches that earlier benchmarks have left in the store: their samples lie in their runs' folders, as JSON lines.

The first line of a file says what was measured, each further one is a pair (`number`, `old`, `new`), a launch of the
new server alone (`number`, `new`), or something void (`void`), which is passed over: `modules.benchmark` writes them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from crossgrade.bench.load_profile import LoadProfile
from crossgrade.store.layout import Store

FILES_READ = 40  # the newest files; older ones say little about the machine of today
SIDES = ("old", "new")


@dataclass(frozen=True)
class StoredLaunch:
    """One launch on record under one load profile.

    `run` is its file, `manifest` that of the generation's files, `starts` the digest of how its server was started (""
    in files that do not say it), `started_at` seconds since the Epoch, `metrics` as in `LoadResult.metrics()`.
    """

    run: str
    generation: int
    manifest: str
    starts: str
    started_at: float
    metrics: Mapping[str, float]

    @property
    def day(self) -> str:
        return datetime.fromtimestamp(self.started_at, timezone.utc).strftime("%Y-%m-%d")


def stored_launches(store: Store, generation: int, profile: LoadProfile) -> list[StoredLaunch]:
    """The launches of a generation under this load that are on record, oldest first.

    Only launches whose requests all succeeded count. Lines and files that cannot be read are passed over: what is there
    is what can be shown.
    """
    files = sorted((store.root / "runs").glob("*/benchmark*.jsonl"), key=_changed)[-FILES_READ:]
    found = [one for file in files for one in _launches_in(file, generation, comparable(profile.to_json()))]
    return sorted(found, key=lambda one: one.started_at)


def by_run(launches: Iterable[StoredLaunch], metric: str) -> list[list[float]]:
    """The figures of each run: what `power.pooled_spread` takes."""
    runs: dict[str, list[float]] = {}
    for launch in launches:
        value = launch.metrics.get(metric, 0.0)
        if math.isfinite(value) and value > 0:
            runs.setdefault(launch.run, []).append(value)
    return list(runs.values())


def comparable(profile: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a load: its name and its patience do not."""
    return {key: value for key, value in profile.items() if key not in ("name", "timeout", "error_limit")}


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _launches_in(file: Path, generation: int, profile: Mapping[str, Any]) -> Iterator[StoredLaunch]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        sides = json.loads(lines[0])["sides"]
        wanted = {side: sides[side] for side in SIDES if sides.get(side, {}).get("generation") == generation}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return
    if not wanted:
        return
    for line in lines[1:]:
        # a run that was killed may have left half a line
        with suppress(ValueError, LookupError, TypeError, AttributeError):
            value = json.loads(line)
            launches = [(side, value[side]) for side in wanted if "number" in value and side in value]
            for side, launch in launches:
                for metrics in _metrics_of(launch, profile):
                    yield StoredLaunch(
                        run=str(file),
                        generation=generation,
                        manifest=str(wanted[side].get("manifest", "")),
                        starts=str(wanted[side].get("starts", "")),
                        started_at=float(launch["started_at"]),
                        metrics=metrics,
                    )


def _metrics_of(launch: Mapping[str, Any], profile: Mapping[str, Any]) -> Iterator[dict[str, float]]:
    results: Sequence[Mapping[str, Any]] = [launch["result"], *launch.get("further_results", ())]
    for result in results:
        if comparable(result["profile"]) == profile and not result["errors"]:
            yield {str(name): float(value) for name, value in result["metrics"].items()}
