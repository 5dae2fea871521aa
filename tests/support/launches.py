"""Samples of launches as the benchmark writes them, with figures that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crossgrade.bench.samples import LoadProfile
from crossgrade.store.generation import Generation
from crossgrade.store.layout import Store

MACHINE = {"machine": "m", "hostname": "h", "processor": "p", "processors": 2, "gpus": [], "driver": "", "kernel": "6"}
PROFILE = LoadProfile(concurrency=2, requests=8)


def ready_generation(store: Store, number: int, manifest: str = "", **contents: Any) -> Generation:
    """The record of a generation, without files."""
    generation = Generation(
        number, f"identity-{number}", "built", "ready", "2026-12-01T00:00:00Z", contents=contents,
        manifest=manifest or f"manifest-{number}",
    )  # fmt: skip
    store.write_generation(generation)
    return generation


def launch(side: str, metrics: Mapping[str, float], at: float, **others: Any) -> dict[str, Any]:
    profile = others.pop("profile", PROFILE).to_json()
    result = {"profile": profile, "metrics": dict(metrics), "errors": others.pop("errors", {}), "samples": []}
    return {"side": side, "started_at": at, "start_seconds": 1.0, "others": 0.0, "result": result, **others}


def write_samples(
    store: Store,
    run: str,
    sides: Mapping[str, int],
    pairs: Sequence[Mapping[str, float]],
    *,
    at: float = 1_000_000.0,
    metric: str = "output_tokens_per_second",
    profile: LoadProfile = PROFILE,
    machine: Mapping[str, Any] = MACHINE,
    manifests: Mapping[str, str] | None = None,
    starts: str = "line",
) -> Path:
    """A file of samples: for each pair, side → the figure. Launches are a minute apart."""
    folder = store.run_folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        side: {"generation": number, "manifest": (manifests or {}).get(side, f"manifest-{number}"), "starts": starts}
        for side, number in sides.items()
    }
    lines: list[dict[str, Any]] = [{"schema": 1, "profile": profile.to_json(), "sides": about, "host": dict(machine)}]
    for number, figures in enumerate(pairs, start=1):
        row: dict[str, Any] = {"number": number, "first": "old"}
        for place, (side, value) in enumerate(figures.items()):
            row[side] = launch(side, {metric: value}, at + 120 * number + 60 * place, profile=profile)
        lines.append(row)
    path = folder / "benchmark.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
