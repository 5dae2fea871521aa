"""Every launch that was measured in a store: read back from the samples that runs keep, and an index over them.

The samples are `ROOT/runs/ID/benchmark*.jsonl`: a header (`profile`, `sides`, `host`), then one replicate a line.
`ROOT/launches.jsonl` has a row for each launch with its figures. It is written by whoever holds the lock
(`update_index`) and holds on to what was measured when a run's folder is gone; reading takes its rows, and only what
the samples have beyond them.

A generation's number may come again after `gc` took the newest one: the digest of its manifest says which was meant.
`gc` removes generations, and neither runs nor launches.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossgrade.store.layout import Store

if TYPE_CHECKING:
    from crossgrade.bench.samples import LoadProfile

INDEX = "launches.jsonl"
SCHEMA = 1
DIGEST_CHARACTERS = 16


@dataclass(frozen=True)
class StoredLaunch:
    """One launch under one profile.

    `run` is the id of the run, `samples` the file with every sample (relative to the store), `end` where the launch
    ends in it (bytes). `pair` counts from 1 within the file; `side` is `old` or `new`. `manifest` is the digest of
    the generation's manifest. `profile`, `starts` and `host` are digests of what was asked, of the launch line and of
    the machine, "" where an early record has none; `asked` and `machine` are the same for people. `started_at` is
    seconds since the Epoch. `metrics` are as `LoadResult.metrics` gives them. `errors` counts failed requests,
    `others` is the share of the processors that other processes took, `void` says why the launch does not count.
    """

    run: str
    samples: str
    end: int
    pair: int
    side: str
    generation: int | None
    manifest: str
    profile: str
    starts: str
    host: str
    started_at: float
    metrics: Mapping[str, float]
    errors: int = 0
    others: float | None = None
    void: str = ""
    asked: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """Whether its figures say something: no request failed, and nothing made it void."""
        return not self.errors and not self.void and bool(self.metrics)

    @property
    def day(self) -> str:
        """`2026-12-01`, UTC."""
        return datetime.fromtimestamp(self.started_at, timezone.utc).strftime("%Y-%m-%d")

    @property
    def pair_key(self) -> tuple[str, int, str]:
        """The same for both launches of a pair under a profile."""
        return self.samples, self.pair, self.profile

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StoredLaunch:
        """Raises TypeError, ValueError or KeyError for what is no row of ours; fields of later versions are left."""
        row = cls(**{name: value[name] for name in cls.__dataclass_fields__ if name in value})
        texts = (row.run, row.samples, row.side, row.manifest, row.profile, row.starts, row.host)
        if not all(isinstance(text, str) for text in texts) or not isinstance(row.end, int):
            raise TypeError("a launch has texts and a place")
        if not isinstance(row.metrics, Mapping) or not isinstance(row.started_at, int | float):
            raise TypeError("a launch has figures and a time")
        return row


@dataclass(frozen=True)
class History:
    """All launches in order of time, and what could not be read, each in a sentence."""

    launches: tuple[StoredLaunch, ...]
    problems: tuple[str, ...] = ()


def digest_of(value: Any) -> str:
    """A short digest of plain data, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]


def profile_digest(profile: LoadProfile | Mapping[str, Any]) -> str:
    """The identity of a load: everything that it asks, but neither what a playbook calls it nor its patience."""
    value: Mapping[str, Any] = profile if isinstance(profile, Mapping) else profile.to_json()
    return digest_of({name: item for name, item in value.items() if name not in ("name", "timeout", "error_limit")})


def host_digest(machine: Mapping[str, Any]) -> str:
    """The identity of a machine as far as speed goes: not its driver and kernel, which upgrades change. "" for none."""
    kept = {name: item for name, item in machine.items() if name not in ("driver", "kernel", "hostname")}
    return digest_of(kept) if kept else ""


def this_machine(system: Path = Path("/")) -> dict[str, Any]:
    """What a launch's figures depend on beside its software. Files are read, nothing is started."""
    from crossgrade.inspect.machine import driver_version, listed_gpus

    release = os.uname()
    try:
        identity = (system / "etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        identity = ""
    # machine-id(5): it is to be kept confidential, a keyed hash may be told
    hashed = hashlib.sha256(f"crossgrade:{identity or release.nodename}".encode()).hexdigest()[:DIGEST_CHARACTERS]
    return {
        "machine": hashed,
        "hostname": release.nodename,
        "processor": _processor(system),
        "processors": os.cpu_count() or 0,
        "gpus": [{"name": gpu.name, "uuid": gpu.uuid} for gpu in listed_gpus(system)],
        "driver": driver_version(system) or "",
        "kernel": release.release,
    }


def _processor(system: Path) -> str:
    try:
        text = (system / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    names = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(names, "")


# ---- reading


def read_history(store: Store) -> History:
    """Everything that was measured in a store. Reads only."""
    indexed, problems = _read_index(store.root / INDEX)
    found, more = _beyond(store, indexed)
    launches = sorted((*indexed, *found), key=lambda launch: (launch.started_at, launch.samples, launch.pair))
    return History(tuple(launches), (*problems, *more))


def stored_launches(
    store: Store,
    generation: int,
    profile: LoadProfile | Mapping[str, Any] | str | None = None,
    *,
    starts: str | None = None,
    host: str | None = None,
) -> list[StoredLaunch]:
    """The launches of a generation that count, oldest first: those of its present files (its manifest).

    `profile` is a profile or its digest; with None, launches of every profile. `starts` and `host` are digests
    (`starts` of a side, `host_digest(this_machine())`): launches whose record says something else are left out, and
    those whose record says nothing count. A generation that is only foreseen has none.
    """
    if generation not in store.numbers():
        return []
    manifest = store.generation(generation).manifest
    wanted = profile if profile is None or isinstance(profile, str) else profile_digest(profile)
    return [
        launch
        for launch in read_history(store).launches
        if launch.counts
        and launch.generation == generation
        and launch.manifest == manifest
        and wanted in (None, launch.profile)
        and (starts is None or launch.starts in ("", starts))
        and (host is None or launch.host in ("", host))
    ]


def by_run(launches: Iterable[StoredLaunch], metric: str) -> list[list[float]]:
    """The figures of each run: what `power.pooled_spread` takes."""
    runs: dict[str, list[float]] = {}
    for launch in launches:
        value = launch.metrics.get(metric, 0.0)
        if math.isfinite(value) and value > 0:
            runs.setdefault(launch.run, []).append(value)
    return list(runs.values())


def update_index(store: Store) -> int:
    """Add to the index what the samples have beyond it; the number of launches added. Needs the lock."""
    indexed, _ = _read_index(store.root / INDEX)
    found, _ = _beyond(store, indexed)
    if found:
        text = "".join(json.dumps({"schema": SCHEMA, **launch.to_json()}) + "\n" for launch in found)
        _append(store.root / INDEX, text)
    return len(found)


def _append(path: Path, text: str) -> None:
    """Durably; after a line that a kill cut off, on a line of its own."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        data = (("\n" if torn else "") + text).encode()
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_index(path: Path) -> tuple[list[StoredLaunch], list[str]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"{path} is unreadable: {error.strerror}"]
    rows: dict[tuple[str, int, str, str], StoredLaunch] = {}
    damaged = 0
    for line in filter(None, lines):
        try:
            row = StoredLaunch.from_json(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError):
            damaged += 1
            continue
        rows[row.samples, row.end, row.side, row.profile] = row
    said = [f"{damaged} of {len(rows) + damaged} rows of {path} are damaged"] if damaged else []
    return list(rows.values()), said


def _beyond(store: Store, indexed: Sequence[StoredLaunch]) -> tuple[list[StoredLaunch], list[str]]:
    """The launches that samples have beyond the index, and what is wrong with samples."""
    read_up_to: dict[str, int] = {}
    for launch in indexed:
        read_up_to[launch.samples] = max(launch.end, read_up_to.get(launch.samples, 0))
    found: list[StoredLaunch] = []
    problems: list[str] = []
    for path in sorted((store.root / "runs").glob("*/benchmark*.jsonl")):
        name = str(path.relative_to(store.root))
        start = read_up_to.get(name, 0)
        try:
            size = path.stat().st_size
            if size < start:
                problems.append(f"{name} is shorter than it was: the index keeps its figures, samples are lost")
            elif size > start:
                found += _read_samples(path, name, start, problems)
        except OSError as error:
            problems.append(f"{name} is unreadable: {error.strerror}")
    return found, problems


def _read_samples(path: Path, name: str, start: int, problems: list[str]) -> Iterator[StoredLaunch]:
    with path.open("rb") as file:
        first = file.readline()
        try:
            header = json.loads(first)
            if not isinstance(header, dict):
                raise TypeError("an object was expected")
        except (ValueError, TypeError) as error:
            problems.append(f"{name} is unreadable: its header: {error}")
            return
        file.seek(max(start, len(first)))
        while line := file.readline():
            if not line.endswith(b"\n"):
                problems.append(f"{name}: its last line is cut off: that pair is lost, or still being written")
                return
            try:
                yield from launches_of(header, json.loads(line), name, file.tell())
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                problems.append(f"{name}: a line that ends at byte {file.tell()} is damaged: {error!r}")


def launches_of(header: Mapping[str, Any], line: Mapping[str, Any], samples: str, end: int) -> list[StoredLaunch]:
    """The launches in one line of samples; `end` is where the line ends in the file. Pure.

    A line has both launches of a pair (`old`, `new`), that of the new server alone, or those of a replicate that was
    void (`void`, `causes`, `launches`). Raises KeyError, TypeError or AttributeError for what is no line of samples.
    """
    void = ""
    if "void" in line:
        void = "; ".join(str(cause.get("detail") or cause.get("kind")) for cause in line.get("causes", ())) or "void"
        launches = list(line["launches"])
    else:
        launches = [line[side] for side in ("old", "new") if side in line]
    machine = dict(header.get("host") or {})
    found = []
    for launch in launches:
        side = str(launch["side"])
        about = dict(header.get("sides", {}).get(side) or {})
        for result in (launch["result"], *launch.get("further_results", ())):
            asked = dict(result.get("profile") or header.get("profile") or {})
            found.append(
                StoredLaunch(
                    run=Path(samples).parent.name,
                    samples=samples,
                    end=end,
                    pair=int(line["void"] if void else line["number"]),
                    side=side,
                    generation=about.get("generation"),
                    manifest=str(about.get("manifest", "")),
                    profile=profile_digest(asked),
                    starts=str(about.get("starts", "")),
                    host=host_digest(machine),
                    started_at=float(launch["started_at"]),
                    metrics={str(name): float(value) for name, value in (result.get("metrics") or {}).items()},
                    errors=sum(int(count) for count in (result.get("errors") or {}).values()),
                    others=launch.get("others"),
                    void=void,
                    asked=_in_short(asked),
                    machine=machine,
                )
            )
    return found


def _in_short(asked: Mapping[str, Any]) -> dict[str, Any]:
    """A profile for people: its prompts may be long and private, how many there are says enough."""
    return {name: len(item) if name == "prompts" else item for name, item in asked.items() if name != "extra_body"}
