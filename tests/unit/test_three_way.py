"""Three-way merges by the real git, and diffs that the real git applies."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossgrade.inspect.three_way import FileVerdict, Merged, conflict_hunks, judge, unified_diff
from crossgrade.modules.merging import git_merge
from crossgrade.process import Completed, run_process


def run(argv: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout: float = 60.0) -> Completed:
    return run_process(argv, env={**os.environ, **(environment or {})}, cwd=None, timeout=timeout)


def never(*texts: bytes) -> Merged:
    raise AssertionError(f"nothing is to be merged here: {texts}")


ORIGINAL = b"".join(b"%d\n" % number for number in range(20))


def changed(line: int, text: bytes, of: bytes = ORIGINAL) -> bytes:
    lines = of.split(b"\n")
    lines[line] = text
    return b"\n".join(lines)


@pytest.mark.parametrize(
    ("original", "ours", "theirs", "expected"),
    [
        (b"a", b"b", b"a", ("applies", b"b")),
        (b"a", b"b", b"b", ("contained", None)),
        (b"a", b"b", None, ("gone", None)),
        (b"a", None, b"a", ("applies", None)),
        (b"a", None, None, ("contained", None)),
        (b"a", None, b"c", ("conflict", None)),
        (None, b"b", None, ("applies", b"b")),
        (None, b"b", b"b", ("contained", None)),
        (None, b"b", b"c", ("conflict", None)),
        (b"a", b"", b"a", ("applies", b"")),
    ],
)
def test_what_needs_no_merge(
    original: bytes | None, ours: bytes | None, theirs: bytes | None, expected: tuple[str, bytes | None]
) -> None:
    verdict = judge(original, ours, theirs, never)
    assert (verdict.outcome, verdict.result) == expected


def test_changes_at_different_places_are_merged(tmp_path: Path) -> None:
    merge = git_merge(tmp_path, run, os.environ)
    verdict = judge(ORIGINAL, changed(2, b"\xff ours"), changed(17, b"theirs"), merge)
    assert verdict == FileVerdict("applies", "merged", changed(17, b"theirs", changed(2, b"\xff ours")))


def test_a_change_that_the_new_version_contains_beside_others(tmp_path: Path) -> None:
    merge = git_merge(tmp_path, run, os.environ)
    theirs = changed(17, b"theirs", changed(2, b"fix"))
    assert judge(ORIGINAL, changed(2, b"fix"), theirs, merge).outcome == "contained"


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_conflict_gives_each_place(tmp_path: Path, end: bytes) -> None:
    merge = git_merge(tmp_path, run, os.environ)
    texts = [ORIGINAL, changed(15, b"ours", changed(2, b"ours")), changed(15, b"theirs", changed(2, b"theirs"))]
    original, ours, theirs = (text.replace(b"\n", end) for text in texts)
    verdict = judge(original, ours, theirs, merge)
    assert (verdict.outcome, verdict.result, len(verdict.hunks)) == ("conflict", None, 2)
    assert verdict.hunks[1].split("\n") == [
        "the local change:",
        "-15",
        "+ours",
        "the new version has there:",
        " theirs",
    ]


def test_a_conflict_is_shown_in_short(tmp_path: Path) -> None:
    """The other version has written a long function anew, in which one line was changed here."""
    original = b"".join(b"%d\n" % number for number in range(100))
    ours = original.replace(b"\n50\n", b"\nfifty\n=======\n")
    (hunk,) = judge(original, ours, b"new\n" * 90, git_merge(tmp_path, run, os.environ)).hunks
    assert hunk.split("\n") == [
        "the local change:", " 47", " 48", " 49", "-50", "+fifty", "+=======", " 51", " 52", " 53",
        "the new version has there:", *[" new"] * 12, " ... and 78 more lines",
    ]  # fmt: skip
    (hunk,) = judge(original, ours, b"0\n1\n", git_merge(tmp_path, run, os.environ)).hunks
    assert hunk.split("\n")[-1] == "the new version has nothing there"


def test_without_git_nothing_is_claimed(tmp_path: Path) -> None:
    merge = git_merge(tmp_path, run, {"PATH": str(tmp_path)})
    verdict = judge(ORIGINAL, changed(2, b"ours"), changed(17, b"theirs"), merge)
    assert verdict == FileVerdict("unknown", "git, which merges, is not on PATH")


def test_a_git_that_fails_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    git = tmp_path / "bin" / "git"
    git.write_text("#!/bin/sh\necho 'error: no room' >&2\nexit 255\n")
    git.chmod(0o755)
    verdict = judge(b"a", b"b", b"c", git_merge(tmp_path, run, {"PATH": str(git.parent)}))
    assert verdict.outcome == "unknown"
    assert "no room" in verdict.detail


def test_marks_in_the_text_itself_are_no_conflict() -> None:
    assert conflict_hunks(b"<<<<<<< HEAD\na\n>>>>>>> branch\n") == ()


LINES = st.lists(st.sampled_from([b"a", b"b", b"c\x0cd", b"", b"\xff", b"-- e", b"++ f", b"g\r"]), max_size=8)


@settings(deadline=None, max_examples=40)
@given(LINES, LINES, st.booleans(), st.booleans())
def test_git_makes_the_new_file_of_the_old_one_and_the_diff(
    tmp_path_factory: pytest.TempPathFactory, old: list[bytes], new: list[bytes], old_ends: bool, new_ends: bool
) -> None:
    before, after = b"\n".join(old) + b"\n" * old_ends, b"\n".join(new) + b"\n" * new_ends
    place = tmp_path_factory.mktemp("apply")
    (place / "some folder").mkdir()
    file = place / "some folder" / "file.py"
    file.write_bytes(before)
    patch = unified_diff("some folder/file.py", before, after)
    assert bool(patch) == (before != after)
    if patch:
        subprocess.run(["git", "apply", "-"], cwd=place, input=patch, check=True)
    assert file.read_bytes() == after


@pytest.mark.parametrize("content", [b"", b"x", b"x\ny\n"])
def test_git_adds_and_removes_files_by_a_diff(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "folder" / "file.py"
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=unified_diff("folder/file.py", None, content), check=True)
    assert file.read_bytes() == content
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=unified_diff("folder/file.py", content, None), check=True)
    assert not file.exists()
