"""What stands in a lock beside the pins: who asks for a dist, its index, commits, hashes."""

from __future__ import annotations

import pytest

from crossgrade.errors import TaskError
from crossgrade.modules.locks import GitPin, git_pin, lock_entries, lock_of, lock_without, with_hashes, yanked

A, B, C = ("sha256:" + letter * 64 for letter in "abc")
COMMIT = "8b5d45892186e2a5ba0a88fd8a22ae5f39ba4ca5"
# As uv 0.13.9 prints it with --emit-index-annotation --annotation-style split
LOCK = f"""\
tiny-numpy==2.0 \\
    --hash={A} \\
    --hash={B}
    # via
    #   -c constraints.txt
    #   tiny-server
    #   tiny-torch
    # from https://pypi.org/simple
tiny-server==2.0 \\
    --hash={C}
    # via -r requirements.in
    # from https://pypi.org/simple
tiny-torch==2.11.0+cu130 \\
    --hash={A}
    # via tiny-server
    # from https://download.example/whl/cu130
tinygit @ git+file:///srv/git@{COMMIT}#subdirectory=python
    # via -r requirements.in
"""


def test_who_asks_for_what_and_where_it_is_from() -> None:
    entries = {entry.dist.name: entry for entry in lock_entries(LOCK)}
    assert {name: (one.parents, one.named) for name, one in entries.items()} == {
        "tiny-numpy": (("tiny-server", "tiny-torch"), True),
        "tiny-server": ((), True),
        "tiny-torch": (("tiny-server",), False),
        "tinygit": ((), True),
    }
    assert entries["tiny-torch"].index == "https://download.example/whl/cu130"
    assert entries["tiny-torch"].dist.version == "2.11.0+cu130"
    assert entries["tinygit"].index == ""


def test_a_commit_pins_without_a_hash_and_a_branch_does_not() -> None:
    entry = next(entry for entry in lock_entries(LOCK) if entry.git)
    assert (entry.dist.version, entry.git) == (f"git {COMMIT}", GitPin("file:///srv/git", COMMIT, "python"))
    assert git_pin(f"git+ssh://git@host/x.git@{COMMIT}") == GitPin("ssh://git@host/x.git", COMMIT)
    assert git_pin("git+https://host/x.git@main") is None
    with pytest.raises(TaskError, match="does not pin an exact version"):
        lock_of("tinygit @ git+file:///srv/git@main\n")


def test_annotations_do_not_reach_the_next_dist() -> None:
    assert "#" not in lock_without(LOCK, {"tinygit"}).replace("#subdirectory", "")
    unannotated = f"a==1 \\\n    --hash={A}\n    # via b\nc==1 \\\n    --hash={A}\n"
    assert [entry.parents for entry in lock_entries(unannotated)] == [("b",), ()]


def test_only_the_hashes_that_are_asked_for_stay() -> None:
    kept = with_hashes(LOCK, {"tiny-numpy": [A]})
    hashes = {entry.dist.name: entry.hashes for entry in lock_entries(kept)}
    assert hashes["tiny-numpy"] == (A,)
    assert hashes["tiny-server"] == (C,), "the hash of another dist was taken out"
    assert {entry.dist.name: entry.parents for entry in lock_entries(kept)}["tiny-numpy"] == (
        "tiny-server",
        "tiny-torch",
    )
    same = with_hashes(LOCK, {"tiny-numpy": [B]})
    assert {entry.dist.name: entry.hashes for entry in lock_entries(same)}["tiny-torch"] == (A,)
    with pytest.raises(TaskError, match=r"no file of tiny-numpy 2\.0 has a hash"):
        with_hashes(LOCK, {"tiny-numpy": [C]})


def test_what_was_yanked() -> None:
    remarks = ['`Tiny_X==2.1` is yanked (reason: "broken kernels")', "`y==1` is yanked", "something else"]
    assert yanked(lock_of("", remarks)) == {"tiny-x": "broken kernels", "y": ""}
