"""A repository that a toolkit's packages come from: whether apt knows it, how it would be with it, and adding it."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.apt_calls import Apt
from crossgrade.modules.apt_repository import NAME, Repository, read_key, source_text
from crossgrade.modules.contract import ApplyContext, Difference, HostView
from crossgrade.modules.file_operations import MakeDirectory, Operation, WriteFile
from crossgrade.modules.files import absolute, missing_directories
from crossgrade.modules.files import look as look_at_file
from crossgrade.store.layout import remove_path

UNDO_LOCK_SECONDS = 600.0


@dataclass(frozen=True)
class NewSource:
    """A repository that apt does not know yet, with the file operations that add it."""

    repository: Repository
    key: bytes
    key_suffix: str
    source_path: Path
    operations: tuple[Operation, ...]
    differences: tuple[Difference, ...]


def look(repository: Repository, apt: Apt, host: HostView) -> NewSource | None:
    """None where apt has a source with this address already, whoever made it. Raises TaskError for a wrong key."""
    if not repository.url.endswith("/"):
        raise TaskError(f"the address {repository.url} of a repository ends with a slash")
    key, suffix = read_key(repository, absolute(repository.key, host))
    if repository.url.rstrip("/") in apt.urls():
        return None
    source_path, key_path = apt.sources / f"{NAME}.sources", apt.configuration / "keyrings" / f"{NAME}.{suffix}"
    text = source_text(repository, key_path).encode()
    operations: list[Operation] = []
    for folder in (key_path.parent, source_path.parent):
        operations += [MakeDirectory(entry, 0o755) for entry in missing_directories(folder, host)]
    operations += [_file(key_path, key, host), _file(source_path, text, host)]
    differences = (
        Difference(str(key_path), "", f"the key {repository.fingerprint}"),
        Difference(str(source_path), "", text.decode()),
    )
    return NewSource(repository, key, suffix, source_path, tuple(operations), differences)


def _file(path: Path, content: bytes, host: HostView) -> WriteFile:
    checksum = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    return WriteFile(look_at_file(path, host), content, checksum, len(content), 0o644)


@contextmanager
def preview(source: NewSource | None, apt: Apt) -> Iterator[Sequence[str]]:
    """Options with which apt sees a new repository too, from lists in a temporary folder; none where there is none.

    Nothing of the system is written. Raises TaskError when the repository cannot be read.
    """
    if source is None:
        yield ()
        return
    with tempfile.TemporaryDirectory(prefix="crossgrade-apt-") as name:
        folder = Path(name)
        lists, parts = folder / "lists", folder / "sources"
        (lists / "partial").mkdir(parents=True)
        parts.mkdir()
        key = folder / f"key.{source.key_suffix}"
        key.write_bytes(source.key)
        for place, wanted in ((apt.lists, lists), (apt.sources, parts)):
            for entry in place.iterdir() if place.is_dir() else ():
                if entry.is_file() and entry.name != "lock":
                    (wanted / entry.name).symlink_to(entry)
        new = parts / source.source_path.name
        new.unlink(missing_ok=True)
        new.write_text(source_text(source.repository, key), encoding="utf-8")
        options = ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Etc::sourceparts={parts}"]
        # the folder is private to this user, so apt's own user could not write to it
        options += ["-o", "APT::Sandbox::User=root"]
        _require_read(apt.update([*options, *_only(new)]), source)
        yield options


def _only(source_path: Path) -> list[str]:
    """Options with which `apt-get update` reads this source and leaves the lists of all others alone."""
    only = ["-o", f"Dir::Etc::sourcelist={source_path}", "-o", "Dir::Etc::sourceparts=-"]
    return [*only, "-o", "APT::Get::List-Cleanup=0", "-o", "APT::Update::Error-Mode=any"]


def _require_read(completed: object, source: NewSource) -> None:
    from crossgrade.process import Completed

    assert isinstance(completed, Completed)  # noqa: S101 - for the type checker
    if not completed.succeeded:
        said = " ".join(line for line in completed.stderr.splitlines() if line.startswith(("E:", "W:")))
        raise TaskError(
            f"the repository {source.repository.url} cannot be read: {said or completed.outcome()}",
            remedy="Check the address, the network and the proxy, and that the key is the one that signs it.",
        )


def read_lists(source: NewSource, apt: Apt, context: ApplyContext, lock_timeout: float, log: str) -> None:
    """Let apt read the lists of a new repository, as a journaled step. Raises TaskError."""
    before = _lists(apt.lists, source.repository.url)
    with context.step(
        f"read the package lists of {source.repository.url}",
        {"method": "lists", "folder": str(apt.lists), "url": source.repository.url, "before": [*sorted(before)]},
    ):
        context.progress(f"reading the package lists of {source.repository.url}")
        apt.change([*_only(source.source_path), "update"], context, lock_timeout, log)


def undo_lists(record: Mapping[str, JSON]) -> str:
    """Remove the lists that came with the repository."""
    before = record["before"]
    new = _lists(Path(str(record["folder"])), str(record["url"])) - set(before if isinstance(before, list) else [])
    for name in new:
        remove_path(Path(str(record["folder"])) / name)
    return f"removed the package lists of {record['url']}" if new else ""


def _lists(folder: Path, url: str) -> set[str]:
    # apt's own way of naming them (URItoFileName): without the scheme, slashes as underscores
    beginning = url.partition(":")[2].strip("/").replace("_", "%5f").replace("/", "_")
    return {entry.name for entry in folder.iterdir() if beginning in entry.name} if folder.is_dir() else set()


def nvidia_repository() -> str:
    """The address of NVIDIA's repository for this distribution; empty where the table has none."""
    import os
    import platform

    from crossgrade.knowledge import table

    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ""
    architecture = {"aarch64": "sbsa"}.get(os.uname().machine, os.uname().machine)
    for row in table("cuda_repositories"):
        if (row["id"], row["version"]) == (release.get("ID"), release.get("VERSION_ID")):
            return f"https://developer.download.nvidia.com/compute/cuda/repos/{row['folder']}/{architecture}/"
    return ""
