"""Carrying a change of one file to another version of it: a three-way merge, and the change as a unified diff.

Of each file there are three texts: the original (as its wheel had it), ours (what somebody made of it) and theirs (the
other version's). None stands for a file that is not there. What needs no merge is told apart here; the rest is given to
a `Merge`, which in `crossgrade.modules.merging` is ``git merge-file``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["applies", "contained", "conflict", "gone", "unknown"]
_NO_NEWLINE = "\\ No newline at end of file\n"
# Labels in conflicts, beside git's marks
OURS, ORIGINAL, THEIRS = "local change", "original", "new version"
_BEGIN, _END = f"<<<<<<< {OURS}\n".encode(), f">>>>>>> {THEIRS}\n".encode()
_SEPARATORS = (f"||||||| {ORIGINAL}\n".encode(), b"=======\n")
SHOWN_LINES = 12


@dataclass(frozen=True)
class Merged:
    """What a merge gave: the text, with git's marks around each of the `conflicts`, or why it could not be made."""

    text: bytes = b""
    conflicts: int = 0
    problem: str = ""


Merge = Callable[[bytes, bytes, bytes], Merged]  # original, ours, theirs


@dataclass(frozen=True)
class FileVerdict:
    """What becomes of a local change in the other version.

    ``applies``: `result` is the file as it should be (None: it is to be removed). ``contained``: the other version has
    it already. ``conflict``: `hunks` are the places. ``gone``: the other version has no such file.
    ``unknown``: it cannot be told, `detail` says why.
    """

    outcome: Outcome
    detail: str = ""
    result: bytes | None = None
    hunks: tuple[str, ...] = ()


def judge(original: bytes | None, ours: bytes | None, theirs: bytes | None, merge: Merge) -> FileVerdict:
    """Whether the change from `original` to `ours` fits onto `theirs`. Pure but for `merge`."""
    settled = judge_without_original(ours, theirs, was_there=original is not None)
    if settled is not None:
        return settled
    if original == theirs or theirs is None:
        same = "has no such file" if theirs is None else "has the original unchanged"
        return FileVerdict("applies", f"the new version {same}", ours)
    if ours is None:
        return FileVerdict("conflict", "it was removed here, and the new version has changed it")
    if original is None:
        return FileVerdict("conflict", "it was added here, and the new version has another file of that name")
    merged = merge(original, ours, theirs)
    if merged.problem:
        return FileVerdict("unknown", merged.problem)
    if merged.conflicts:
        places = conflict_hunks(merged.text)
        return FileVerdict("conflict", f"{merged.conflicts} of its places changed in both", None, places)
    if merged.text == theirs:
        return FileVerdict("contained", "the new version contains the change")
    return FileVerdict("applies", "merged", merged.text)


def judge_without_original(ours: bytes | None, theirs: bytes | None, *, was_there: bool) -> FileVerdict | None:
    """What can be told before the original is looked for; None when it is needed. `was_there`: there is an original."""
    if ours == theirs:
        return FileVerdict("contained", "the new version has the same")
    if theirs is None and was_there:
        return FileVerdict("gone", "the new version has no such file")
    return None


def conflict_hunks(merged: bytes) -> tuple[str, ...]:
    """Each place that changed in both, of the text of a merge with git's marks: what was changed here, and what the
    other version has there (at most its first lines: it may have written everything anew)."""
    hunks: list[str] = []
    parts: list[list[bytes]] = []
    for line in merged.split(b"\n"):
        whole = line.rstrip(b"\r") + b"\n"
        if whole == _BEGIN:
            parts = [[]]
        elif not parts:
            continue
        elif whole == _END and len(parts) == len(_SEPARATORS) + 1:
            hunks.append(_hunk(*(_texts(part) for part in parts)))
            parts = []
        elif len(parts) <= len(_SEPARATORS) and whole == _SEPARATORS[len(parts) - 1]:
            parts.append([])
        else:
            parts[-1].append(line)
    return tuple(hunks)


def _texts(lines: Sequence[bytes]) -> list[str]:
    return [line.decode("utf-8", "replace").rstrip("\r") for line in lines]


def _hunk(ours: Sequence[str], original: Sequence[str], theirs: Sequence[str]) -> str:
    compared = [line for line in difflib.unified_diff(original, ours, n=3, lineterm="") if not _is_header(line)]
    shown = [f" {line}" for line in theirs[:SHOWN_LINES]]
    if len(theirs) > SHOWN_LINES:
        shown.append(f" ... and {len(theirs) - SHOWN_LINES} more lines")
    lines = [
        f"the {OURS}:",
        *compared,
        f"the {THEIRS} has there:" if theirs else f"the {THEIRS} has nothing there",
        *shown,
    ]
    return "\n".join(lines)


def _is_header(line: str) -> bool:
    """Of a unified diff: the names, which are empty here, and the numbers of lines, which count within the place."""
    return line.rstrip() in ("---", "+++") or line.startswith("@@ ")


def unified_diff(path: str, before: bytes | None, after: bytes | None) -> bytes:
    """A patch of one file, as ``git apply`` and ``patch -p1`` read it; empty where nothing differs."""
    if before == after:
        return b""
    name = path.encode("utf-8", "surrogateescape")
    head = b"diff --git a/%s b/%s\n" % (name, name)
    if before is None:
        head += b"new file mode 100644\n"
    elif after is None:
        head += b"deleted file mode 100644\n"
    from_file = "/dev/null" if before is None else f"a/{path}"
    to_file = "/dev/null" if after is None else f"b/{path}"
    parts = difflib.unified_diff(_lines(before or b""), _lines(after or b""), from_file, to_file)
    return head + b"".join(part.encode("utf-8", "surrogateescape") for part in _ended(parts))


def changed_lines(patch: bytes) -> tuple[int, int]:
    """How many lines a patch adds and removes."""
    body = [line for line in patch.split(b"\n") if not line.startswith((b"+++ ", b"--- "))]
    return sum(line.startswith(b"+") for line in body), sum(line.startswith(b"-") for line in body)


def _lines(content: bytes) -> Sequence[str]:
    """Only ``\\n`` ends a line: str.splitlines() would also cut at form feeds, which Python code may hold."""
    text = content.decode("utf-8", "surrogateescape")
    return [f"{line}\n" for line in text.split("\n")[:-1]] + ([last] if (last := text.rpartition("\n")[2]) else [])


def _ended(parts: Iterator[str]) -> Iterator[str]:
    for part in parts:
        yield part if part.endswith("\n") else f"{part}\n{_NO_NEWLINE}"
