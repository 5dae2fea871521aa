"""Files that two or more dists of a virtual environment list as theirs, and whose bytes are there now.

The installers write each wheel over what is there: of ``nvidia-nccl-cu12`` and ``nvidia-nccl-cu13``, which both
bring ``nvidia/nccl/lib/libnccl.so.2``, the one installed last wins, and uninstalling either takes the file from
both. Only files are read: each RECORD, and those files whose hashes disagree.

Sources: the PyPA specification "Recording installed projects" (RECORD: paths may be absolute or relative to
site-packages; the hash may be absent for what is not known when the wheel is built), and PEP 427 (the hash is URL-safe
base64 without padding).
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossgrade.inspect.dists import InstalledDist, site_packages
from crossgrade.inspect.installed_files import Recorded, read_records

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Claim:
    """What one dist's RECORD says about a file: its hash, both parts empty where the line states none.

    ``digest`` is URL-safe base64 without padding, ``algorithm`` a name of `hashlib`.
    """

    dist: InstalledDist
    algorithm: str
    digest: str


@dataclass(frozen=True)
class Conflict:
    """A file that two or more dists list. ``path`` is relative to site-packages, in normal form (``../../../bin/x``).

    ``agree`` is True where all state the same content (harmless), False where they do not, and None where that
    cannot be told: a line states no hash, or one of an algorithm that is not known. Where two stated hashes
    differ, the file was read: ``current`` are the dists whose bytes it holds (none: nobody's), and ``problem``
    says why it could not be read (``missing``).
    """

    path: str
    claims: tuple[Claim, ...]
    agree: bool | None
    current: tuple[InstalledDist, ...] = ()
    problem: str = ""

    @property
    def dists(self) -> tuple[InstalledDist, ...]:
        """The dists that list the file, in order of name."""
        return tuple(claim.dist for claim in self.claims)


def conflicts(venv: Path, records: Sequence[Recorded] | None = None) -> tuple[Conflict, ...]:
    """Every file that the RECORDs of two or more dists list, in order of path.

    Compiled Python files and the files of .dist-info directories never count; a dist without RECORD lists nothing,
    and so does one whose RECORD is damaged: `Recorded.problem` says so. ``records`` are those of `read_records`, where
    they were read already. The time is that of reading them, and of hashing the files that are in dispute.
    Raises UnreadableEnvironmentError for what is no environment.
    """
    site = str(site_packages(venv))
    records = read_records(venv) if records is None else records
    seen: set[str] = set()
    shared: set[str] = set()
    for recorded in records:
        shared |= recorded.files.keys() & seen
        seen.update(recorded.files)
    claims: dict[str, list[Claim]] = {path: [] for path in sorted(shared)}
    for recorded in records:
        for path in shared.intersection(recorded.files):
            algorithm, _, digest = recorded.files[path].partition("=")
            claims[path].append(Claim(recorded.dist, algorithm.lower(), digest.rstrip("=")))
    return tuple(_conflict(site, path, tuple(found)) for path, found in claims.items())


def by_dists(found: Iterable[Conflict]) -> dict[tuple[InstalledDist, ...], tuple[Conflict, ...]]:
    """The conflicts of each set of dists, which is nearly always a pair, in order of their names."""
    groups: dict[tuple[InstalledDist, ...], list[Conflict]] = {}
    for conflict in found:
        groups.setdefault(conflict.dists, []).append(conflict)
    ordered = sorted(groups, key=lambda dists: [(dist.name, dist.version) for dist in dists])
    return {dists: tuple(groups[dists]) for dists in ordered}


def _conflict(site: str, path: str, claims: tuple[Claim, ...]) -> Conflict:
    stated = {(claim.algorithm, claim.digest) for claim in claims if claim.algorithm and claim.digest}
    complete = all(claim.algorithm and claim.digest for claim in claims)
    if len(stated) < 2:
        return Conflict(path, claims, True if complete else None)
    algorithms = {algorithm for algorithm, _ in stated}
    try:
        digests = {algorithm: file_digest(os.path.join(site, path), algorithm) for algorithm in algorithms}  # noqa: PTH118  # a string
        problem = ""
    except FileNotFoundError:
        digests, problem = {}, "missing"
    except OSError as error:
        digests, problem = {}, f"unreadable ({error.strerror})"
    current = tuple(claim.dist for claim in claims if claim.digest and digests.get(claim.algorithm) == claim.digest)
    agree: bool | None = False
    if len(stated) == len(algorithms):
        # One hash of each algorithm: only the file itself can say whether they are those of the same bytes.
        if len(current) == len(claims):
            agree = True
        elif not complete or not all(digests.get(algorithm) for algorithm in algorithms):
            agree = None
    return Conflict(path, claims, agree, current, problem)


def file_digest(path: str, algorithm: str) -> str:
    """The hash of a file as RECORD writes it; empty for an algorithm that is not known. Raises OSError."""
    try:
        hasher = hashlib.new(algorithm, usedforsecurity=False)
        hasher.digest()  # those of variable length (shake_128) have none of their own
    except (ValueError, TypeError):
        return ""
    # Without O_NONBLOCK a pipe in the place of the file would be waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "no regular file")
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            hasher.update(chunk)
    finally:
        os.close(descriptor)
    return base64.urlsafe_b64encode(hasher.digest()).rstrip(b"=").decode()
