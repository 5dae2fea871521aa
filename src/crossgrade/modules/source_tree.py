"""A source tree as the input of a build: its digest, and a copy to build in."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

# What tools leave in a source tree and no build reads. `.git` is copied, because some builds ask it for
# their version, but only the commit it stands at counts in the digest.
LEFTOVERS = frozenset(
    {"__pycache__", ".venv", ".tox", ".nox", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".cache"}
)
_REPOSITORY = ".git"
_CHUNK = 1 << 20


def digest_of_tree(root: Path) -> str:
    """sha256 over path, kind, executable bit and content of all files, in order of path; not of where it lies.

    Leftovers of tools and compiled Python do not count. Raises OSError.
    """
    digest = hashlib.sha256()
    for relative, entry in sorted(_files(root, "")):
        mode = entry.stat(follow_symlinks=False).st_mode
        if entry.is_symlink():
            digest.update(f"link {relative!r} {str(Path(entry.path).readlink())!r}\n".encode())
            continue
        digest.update(f"file {relative!r} {bool(mode & stat.S_IXUSR)} {_sha256(entry.path)}\n".encode())
    digest.update(f"commit {_commit(root / _REPOSITORY)}\n".encode())
    return digest.hexdigest()


def _files(folder: Path | str, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in LEFTOVERS or entry.name == _REPOSITORY or entry.name.endswith(".pyc"):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path, f"{prefix}{entry.name}/")
            elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
                yield f"{prefix}{entry.name}", entry


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as stream:  # noqa: PTH123 - a str from scandir
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _commit(repository: Path) -> str:
    """The commit that a checkout stands at, read without git; "" where there is no repository."""
    try:
        head = (repository / "HEAD").read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    name = head.removeprefix("ref: ")
    if name == head:
        return head
    try:
        return (repository / name).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        pass
    try:
        packed = (repository / "packed-refs").read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    found = re.search(rf"^([0-9a-f]+) {re.escape(name)}$", packed, re.MULTILINE)
    return found[1] if found else ""


def copy_tree(source: Path, place: Path) -> None:
    """Copy a source tree for a build, symlinks as they are, without the leftovers. Raises OSError."""
    shutil.copytree(source, place, symlinks=True, ignore=shutil.ignore_patterns(*LEFTOVERS, "*.pyc"))


def project_name(source: Path) -> str:
    """The project's name as pyproject.toml states it, for people; "" when it does not."""
    try:
        text = (source / "pyproject.toml").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    table = re.search(r"^\[project\]\s*$(.*?)(?=^\[|\Z)", text, re.MULTILINE | re.DOTALL)
    found = table and re.search(r"""^name\s*=\s*["']([^"']+)["']""", table[1], re.MULTILINE)
    return found[1] if found else ""
