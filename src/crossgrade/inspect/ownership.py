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
import csv
import errno
import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from crossgrade.inspect.dists import InstalledDist, UnreadableEnvironmentError, installed_dists, site_packages

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


def conflicts(venv: Path) -> tuple[Conflict, ...]:
    """Every file that the RECORDs of two or more dists list, in order of path.

    Compiled Python files and the files of .dist-info directories never count; a dist without RECORD lists nothing.
    The time is that of reading the RECORDs (60,000 lines: 0.1 s), and of hashing the files that are in dispute.
    Raises UnreadableEnvironmentError for what is no environment, and for a RECORD that is damaged.
    """
    site = str(site_packages(venv))
    dists = installed_dists(venv)
    recorded = [_recorded(dist, site) for dist in dists]
    seen: set[str] = set()
    shared: set[str] = set()
    for files in recorded:
        shared |= seen.intersection(files)
        seen.update(files)
    claims: dict[str, list[Claim]] = {path: [] for path in sorted(shared)}
    for dist, files in zip(dists, recorded, strict=True):
        for path in shared.intersection(files):
            algorithm, _, digest = files[path].partition("=")
            claims[path].append(Claim(dist, algorithm.lower(), digest.rstrip("=")))
    return tuple(_conflict(site, path, tuple(found)) for path, found in claims.items())


def by_dists(found: Iterable[Conflict]) -> dict[tuple[InstalledDist, ...], tuple[Conflict, ...]]:
    """The conflicts of each set of dists, which is nearly always a pair, in order of their names."""
    groups: dict[tuple[InstalledDist, ...], list[Conflict]] = {}
    for conflict in found:
        groups.setdefault(conflict.dists, []).append(conflict)
    ordered = sorted(groups, key=lambda dists: [(dist.name, dist.version) for dist in dists])
    return {dists: tuple(groups[dists]) for dists in ordered}


def _recorded(dist: InstalledDist, site: str) -> dict[str, str]:
    """Path in normal form → hash as RECORD writes it (``sha256=…``), of all files that can conflict."""
    # Not record_entries(): an object for each of 60,000 lines takes longer than all the rest.
    found: dict[str, str] = {}
    try:
        with dist.record.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            for row in csv.reader(file):
                if not row:
                    continue
                path, digest, _ = row
                if path.endswith((".pyc", "/")):
                    continue
                if ".." in path or "./" in path or "//" in path or path[0] == "/":
                    path = _normal(path, site)
                if "__pycache__/" in path and "__pycache__" in path.split("/"):
                    continue
                if ".dist-info/" in path and path.partition("/")[0].endswith(".dist-info"):
                    continue
                found[path] = digest
    except FileNotFoundError:
        return {}
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    except (csv.Error, ValueError, IndexError) as error:
        reason = f"is damaged ({error})"
    else:
        return found
    raise UnreadableEnvironmentError(f"{dist}: {dist.record} {reason}", remedy=f"Install {dist} again.")


def _normal(path: str, site: str) -> str:
    """Relative to site-packages. Symlinks are not resolved: that would cost a look at the disk for each line."""
    return os.path.relpath(os.path.join(site, path), site)  # noqa: PTH118  # a string, in bulk


def _conflict(site: str, path: str, claims: tuple[Claim, ...]) -> Conflict:
    stated = {(claim.algorithm, claim.digest) for claim in claims if claim.algorithm and claim.digest}
    complete = all(claim.algorithm and claim.digest for claim in claims)
    if len(stated) < 2:
        return Conflict(path, claims, True if complete else None)
    algorithms = {algorithm for algorithm, _ in stated}
    try:
        digests = {algorithm: _digest(os.path.join(site, path), algorithm) for algorithm in algorithms}  # noqa: PTH118  # a string
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


def _digest(path: str, algorithm: str) -> str:
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
