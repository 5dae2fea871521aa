"""Runs as they lie in the store: which there are, the report of one, and the samples of its benchmarks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from crossgrade.errors import CrossgradeError
from crossgrade.report.document import Document, make_document, samples_path
from crossgrade.report.measurements import Measurements, read_samples
from crossgrade.report.records import REPORT_FILE, arrange
from crossgrade.report.run_log import LOG_FILE
from crossgrade.store.layout import Store

# A benchmark of many launches has some megabytes of samples.
_MOST_BYTES = 512 * 1024 * 1024


def find_run(store: Store, name: str) -> Path:
    """The folder of a run: of this id, or of the only id that begins so; without a name the newest that has a report.

    Raises CrossgradeError when there is none, or several.
    """
    folder = store.root / "runs"
    runs = sorted(each for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []
    remedy = "`crossgrade history` lists the runs."
    if not name:
        for run in reversed(runs):
            if (run / REPORT_FILE).is_file() or (run / LOG_FILE).is_file():
                return run
        raise CrossgradeError(f"no run in {folder} has a report yet", remedy=remedy)
    found = [run for run in runs if run.name == name] or [run for run in runs if run.name.startswith(name)]
    if len(found) != 1:
        many = f"{len(found)} runs begin with" if found else "there is no run"
        raise CrossgradeError(f"{many} {name!r} in {folder}", remedy=remedy)
    return found[0]


def read_report(run: Path) -> Mapping[str, Any]:
    """What `report.json` holds; of a run that was killed, what its log tells. Raises CrossgradeError."""
    try:
        report = json.loads((run / REPORT_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _from_log(run)
    except ValueError as error:
        raise CrossgradeError(f"{run / REPORT_FILE} is unreadable: {error}") from error
    if not isinstance(report, dict):
        raise CrossgradeError(f"{run / REPORT_FILE} is unreadable: it holds no report")
    return report


def _from_log(run: Path) -> Mapping[str, Any]:
    """The events in a run's log, as its report would have them; a line that was cut off is left out."""
    try:
        lines = (run / LOG_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError as error:
        raise CrossgradeError(
            f"run {run.name} has neither a report nor a log: it only looked, or it is a rollback",
            remedy="`crossgrade history` says what became of it.",
        ) from error
    events = []
    for line in lines:
        try:
            entry = json.loads(line)
            at = datetime.fromisoformat(str(entry["timestamp"]).replace("Z", "+00:00"))
        except (ValueError, KeyError, TypeError):
            continue
        event = {name.removesuffix("_") if name == "run_" else name: value for name, value in entry.items()}
        events.append({**event, "time": at.replace(tzinfo=at.tzinfo or timezone.utc).timestamp()})
    return arrange(events)


def read_document(run: Path) -> Document:
    """The document of a run, with every sample that its benchmarks have kept. Raises CrossgradeError."""
    report = read_report(run)
    paths = {path for gate in make_document(report, {}).gates if (path := samples_path(gate))}
    return make_document(report, {path: _samples(Path(path), run) for path in paths})


def _samples(path: Path, run: Path) -> tuple[Measurements, ...]:
    """The samples where the verdict says that they are, or beside the report, where a store was moved."""
    for candidate in (path, run / path.name):
        try:
            if not candidate.is_file():
                continue
            if candidate.stat().st_size > _MOST_BYTES:
                return (Measurements({}, (), f"{candidate} holds more than {_MOST_BYTES // 1024**2} MiB"),)
            with candidate.open(encoding="utf-8", errors="replace") as lines:
                return read_samples(lines)
        except OSError as error:
            return (Measurements({}, (), f"unreadable: {candidate}: {error.strerror}"),)
    return (Measurements({}, (), f"{path} is not there any more"),)
