"""Archives that are as wrong as somebody wants them to be."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from crossgrade.store.archive import MANIFEST, RECORD, Record
from crossgrade.store.manifest import Entry, Manifest, digest_of, manifest_bytes
from crossgrade.store.zstandard import zstd

Member = tuple[tarfile.TarInfo, bytes]


def members_of(path: Path) -> list[Member]:
    with zstd.open(path, "rb") as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        return [(member, _data(archive, member)) for member in archive]


def _data(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member) if member.isreg() else None
    return stream.read() if stream else b""


def write_members(path: Path, members: Sequence[Member]) -> Path:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data) if member.isreg() else None)
    path.write_bytes(zstd.compress(buffer.getvalue()))
    return path


def info(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.size, member.linkname = kind, size, link
    return member


def entry(path: str, kind: str, mode: int = 0o644, size: int = 0, digest: str = "", target: str = "") -> Entry:
    return Entry(path, kind, mode, 0, 0, size, 0, 0, 0, 0, digest, target)  # type: ignore[arg-type]


def with_entries(
    members: Sequence[Member], change: Callable[[dict[str, Entry]], None], more: Sequence[Member]
) -> list[Member]:
    """The archive with another manifest, whose digests all fit, and with more members in their place by path."""
    by_name = {member.name: (member, data) for member, data in members}
    record = Record.from_json(json.loads(by_name[RECORD][1]))
    head, _, body = by_name[MANIFEST][1].partition(b"\n")
    assert head
    entries = {values[0]: Entry._make(values) for values in json.loads(body)}
    change(entries)
    manifest = Manifest(entries, digest_of(entries))
    data = manifest_bytes(manifest)
    told = json.dumps(replace(record, manifest=manifest.digest).to_json()).encode()
    venv = {member.name: (member, content) for member, content in (*members, *more) if member.name.startswith("venv/")}
    wanted = [venv[name] for name in (f"venv/{path}" for path in sorted(entries)) if name in venv]
    return [
        (info(RECORD, size=len(told)), told),
        (info(MANIFEST, size=len(data)), data),
        *(each for each in members if each[0].name.startswith("extras/")),
        by_name["venv"],
        *wanted,
    ]
