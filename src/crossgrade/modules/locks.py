"""Locks: requirements files with hashes, as ``uv pip compile`` writes them. Pure: from text to data.

The form is that of pip's requirements files, which uv writes (https://docs.astral.sh/uv/pip/compile/): a line that pins
a dist, continued by its hashes, and below it comments that say who asks for it (``# via``) and which index it is from
(``# from``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from crossgrade.errors import TaskError
from crossgrade.modules.contract import Lock, LockedDist

_HASH = re.compile(r"\s+--hash[=\s](\S+)")
_COMMIT = re.compile(r"^git\+(?P<url>[^#]+)@(?P<commit>[0-9a-f]{40,64})(?:#(?P<fragment>.*))?$")

_YANKED = re.compile(r"`([A-Za-z0-9._-]+)==[^`]*` is yanked(?: \(reason: \"(.*)\"\))?")


@dataclass(frozen=True)
class GitPin:
    """What a lock says of a dist from a git repository: the full commit, and the folder below it ("" for the top)."""

    url: str
    commit: str
    subdirectory: str = ""


@dataclass(frozen=True)
class LockEntry:
    """One dist of a lock with its own lines of text, hashes included.

    `hashes` are as in ``--hash`` (``sha256:…``); empty only where `git` pins a commit. `parents` are the dists that ask
    for it, `named` says that a person does (a requirement, a constraint or an override), `index` where it is from.
    """

    dist: LockedDist
    text: str
    hashes: tuple[str, ...] = ()
    git: GitPin | None = None
    parents: tuple[str, ...] = ()
    named: bool = False
    index: str = ""


def lock_of(text: str, remarks: Sequence[str] = ()) -> Lock:
    """A lock from the text of a requirements file with hashes. Raises TaskError as `parse_lock` does."""
    return Lock(text, sha256(text.encode()).hexdigest(), parse_lock(text), tuple(remarks))


def parse_lock(text: str) -> tuple[LockedDist, ...]:
    """The dists of a lock in order of name.

    Raises TaskError for a line that pins no exact version or carries no hash: such a lock would not say what
    gets installed. A git repository is pinned by a full commit instead.
    """
    return tuple(sorted((entry.dist for entry in lock_entries(text)), key=lambda dist: dist.name))


def lock_entries(text: str) -> Iterator[LockEntry]:
    """The entries of a lock in order of text. Raises TaskError as `parse_lock` does."""
    yield from _entries(text)


@lru_cache(maxsize=4)
def _entries(text: str) -> tuple[LockEntry, ...]:
    """Kept, for a plan looks into the same lock several times, and reading 200 requirements takes 10 ms."""
    return tuple(_read_entries(text))


def _read_entries(text: str) -> Iterator[LockEntry]:
    for lines, comments in _blocks(text):
        joined = " ".join(line.rstrip("\\").strip() for line in lines)
        requirement, hashes = _HASH.sub("", joined).strip(), tuple(_HASH.findall(joined))
        if requirement.startswith("-"):  # an option: `--index-url …`
            continue
        dist, git = _locked(requirement)
        if dist is None:
            raise TaskError(f"the lock does not pin an exact version here: {requirement}")
        if not hashes and git is None:
            raise TaskError(f"the lock has no hash for {requirement}")
        parents, named, index = _annotations(comments)
        yield LockEntry(dist, "\n".join(lines) + "\n", hashes, git, parents, named, index)


def yanked(lock: Lock) -> dict[str, str]:
    """Normalized name → the reason that was given, of the dists that their authors took back, by what uv remarked."""
    from packaging.utils import canonicalize_name

    found = (_YANKED.search(remark) for remark in lock.remarks)
    return {str(canonicalize_name(one[1])): one[2] or "" for one in found if one}


def lock_without(text: str, names: Collection[str]) -> str:
    """The lock's text without some dists: those that a wheel built here takes the place of."""
    return "".join(entry.text for entry in lock_entries(text) if entry.dist.name not in names)


def with_hashes(text: str, wanted: Mapping[str, Collection[str]]) -> str:
    """The lock's text with only those hashes that a requirements file asks for, by normalized name.

    Raises TaskError for a dist of which no file has any of them.
    """
    if not wanted:
        return text
    lines: list[str] = []
    for entry, block in _with_own_lines(text):
        asked = wanted.get(entry.dist.name) if entry else None
        if entry is not None and asked is not None and not set(entry.hashes) & set(asked):
            raise TaskError(
                f"no file of {entry.dist.name} {entry.dist.version} has a hash that the requirements file asks for",
                remedy="Either the index serves another file than when the requirements file was written, or the "
                "version is another one: write the file anew, or find out why.",
            )
        digests = [(line, _HASH.search(line)) for line in block]
        lines += [line for line, digest in digests if asked is None or digest is None or digest[1] in asked]
    return _without_dangling_continuations(lines)


def _with_own_lines(text: str) -> Iterator[tuple[LockEntry | None, list[str]]]:
    """Each entry with all of its lines and comments; None with what stands before the first one."""
    entries = lock_entries(text)
    entry: LockEntry | None = None
    block: list[str] = []
    for line in text.splitlines():
        if line[:1] not in ("", " ", "\t", "#", "-"):
            yield entry, block
            entry, block = next(entries), []
        block.append(line)
    yield entry, block


def _without_dangling_continuations(lines: list[str]) -> str:
    """Each block ends without a backslash, whichever of its hashes were taken out."""
    for place, line in enumerate(lines):
        following = lines[place + 1] if place + 1 < len(lines) else ""
        if line.endswith("\\") and not following.lstrip().startswith("--hash"):
            lines[place] = line.rstrip("\\").rstrip()
    return "\n".join(lines) + "\n"


def _blocks(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """Each requirement's lines, and the comments below them."""
    lines: list[str] = []
    comments: list[str] = []
    whole = False
    for line in text.splitlines():
        if (whole or not lines) and (not line.strip() or line.lstrip().startswith("#")):
            comments.append(line.strip())
            continue
        if whole:
            yield lines, comments
            lines = []
        if not lines:
            comments = []
        lines.append(line)
        whole = not line.endswith("\\")
    if lines:
        yield lines, comments


def _annotations(comments: Sequence[str]) -> tuple[tuple[str, ...], bool, str]:
    """Who asks for a dist, whether a person does, and the index, from the comments below it.

    uv writes ``# via a`` for one, else ``# via`` with one below the other; what is no dist but a file that a person
    wrote starts with an option: ``-r requirements.in``, ``-c constraints.txt``, ``--override overrides.txt``.
    """
    asking: list[str] = []
    index = ""
    listing = False
    for comment in comments:
        words = comment.lstrip("#").strip()
        if words == "via" or words.startswith("via "):
            listing = True
            asking += [words[4:].strip()] if words != "via" else []
        elif words.startswith("from "):
            listing, index = False, words[5:].strip()
        elif listing and comment.startswith("#  ") and words:
            asking.append(words)
        else:
            listing = False
    parents = tuple(name.partition(" ")[0] for name in asking if not name.startswith("-"))
    return parents, any(name.startswith("-") for name in asking), index


def _locked(requirement: str) -> tuple[LockedDist | None, GitPin | None]:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    try:
        parsed = Requirement(requirement.partition(" #")[0])
    except InvalidRequirement:
        return None, None
    name = canonicalize_name(parsed.name)
    if parsed.url and parsed.url.startswith("git+"):
        git = git_pin(parsed.url)
        return (None, None) if git is None else (LockedDist(name, f"git {git.commit}"), git)
    if parsed.url:
        return LockedDist(name, _version_in_url(parsed.url)), None
    exact = [one.version for one in parsed.specifier if one.operator in ("==", "===")]
    if len(exact) != 1 or exact[0].endswith(".*"):
        return None, None
    return LockedDist(name, exact[0]), None


def git_pin(url: str) -> GitPin | None:
    """The parts of ``git+URL@COMMIT#subdirectory=FOLDER``; None without a full commit."""
    found = _COMMIT.match(url)
    if found is None:
        return None
    fragments = dict(part.partition("=")[::2] for part in (found["fragment"] or "").split("&"))
    return GitPin(found["url"], found["commit"], fragments.get("subdirectory", ""))


def _version_in_url(url: str) -> str:
    from urllib.parse import unquote, urlsplit

    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        return str(parse_wheel_filename(Path(unquote(urlsplit(url).path)).name)[1])
    except InvalidWheelFilename:
        return url
