"""The Nth call of a system call is killed, or fails: for N = 1, 2, … until a run gets through.

strace does it to the real program (strace(1), "inject"). `-P` narrows a sweep to calls on paths below the root, so that
opening Python's own modules does not count. Once only crossgrade itself is traced, once its children too: then N counts
in each process by itself.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.interruptions import each, nothing_left, recovered, whole
from tests.support.privileges import needs_strace
from tests.support.small_upgrade import SmallUpgrade, make_small_upgrade
from tests.support.strace import injecting
from tests.support.tally import Tally

# the calls by which files are changed and made durable; some have two names, and which one is used is libc's affair
CALLS = {
    "fsync": "fsync,fdatasync,syncfs",
    "rename": "rename,renameat,renameat2",
    "unlink": "unlink,unlinkat,rmdir",
    "openat": "openat",
    "write": "write,pwrite64",
    "link": "link,linkat",
    "symlink": "symlink,symlinkat",
    "mkdir": "mkdir,mkdirat",
    "chmod": "chmod,fchmod,fchmodat,fchown,chown",
    "truncate": "ftruncate,truncate",
}
ERRORS = ("ENOSPC", "EIO", "EACCES")
DOCUMENTED = (0, 1, 2, 6)
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)

pytestmark = needs_strace


@dataclass(frozen=True)
class Injection:
    """`what` is `signal=SIGKILL` or `error=...`; `children` traces the programs that crossgrade starts as well."""

    call: str
    what: str
    when: int
    children: bool = False

    def __str__(self) -> str:
        where = " or a child" if self.children else ""
        return f"{self.what} at {self.call} number {self.when} of crossgrade{where}"

    @property
    def kind(self) -> str:
        return f"{self.what.partition('=')[2]} at {self.call}"


def run_injected(upgrade: SmallUpgrade, injection: Injection, command: str = "upgrade") -> tuple[int, str, bool]:
    """Exit code, stderr, and whether the injection happened."""
    log = upgrade.folder / "strace.log"
    what = f"{CALLS[injection.call]}:{injection.what}:when={injection.when}"
    argv = injecting(what, log=log, children=injection.children)
    argv += ["--seccomp-bpf"] if injection.children else []
    if injection.call == "openat":
        below = [path for path in upgrade.root.rglob("*") if not path.is_symlink() and "lib" not in path.parts]
        store = upgrade.store
        for path in (upgrade.root, *sorted(below), store.root, store.journal_path, store.lock_path):
            argv += ["-P", str(path)]
    completed = subprocess.run(
        [*argv, *upgrade.argv(command)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        start_new_session=True,
    )
    said = log.read_text(errors="replace") if log.exists() else ""
    happened = "(INJECTED)" in said or "+++ killed by SIGKILL" in said
    return completed.returncode, completed.stderr, happened


def inject(folder: Path, injection: Injection, tally: Tally) -> bool:
    """True when the injection happened; then everything has been checked and counted."""
    upgrade = make_small_upgrade(folder)
    code, said, happened = run_injected(upgrade, injection)
    outcome = "lost"
    try:
        nothing_left(upgrade)
        outcome = whole(upgrade)
        if injection.what.startswith("error"):
            assert code in DOCUMENTED, (code, said)
            assert "Traceback" not in said, said
            if code == 0:
                assert outcome == "new", said
            if code in (1, 2):
                assert outcome == "old", said
        elif happened and not injection.children:
            assert code in KILLED, (code, said)
        recovered(upgrade, "upgrade" if injection.when % 2 else "rollback")
    finally:
        if happened:
            tally.add(injection.kind, outcome)  # type: ignore[arg-type]  # old, new or lost
    shutil.rmtree(folder)
    return happened


def sweep(folder: Path, call: str, what: str, tally: Tally, *, children: bool = False, most: int = 400) -> int:
    """N = 1, 2, … until a run gets through. Returns how many times it happened."""
    when, count = 1, 0
    while when < most:
        if not inject(folder / f"{call}-{what}-{when}", Injection(call, what, when, children), tally):
            return count
        count += 1
        # every kill; of the errors at the calls that are many, every one at first, then farther apart
        when += 1 + (when // 4 if what != "signal=SIGKILL" and call in ("fsync", "write", "openat") else 0)
    raise AssertionError(f"{call} is called more than {most} times: the sweep did not come to its end")


def test_some_calls(tmp_path: Path, tally: Tally) -> None:
    cases = [
        Injection("rename", "signal=SIGKILL", 6),
        Injection("fsync", "signal=SIGKILL", 9),
        Injection("write", "error=ENOSPC", 60),
        Injection("rename", "error=EIO", 8),
        Injection("symlink", "error=EACCES", 2),
        Injection("fsync", "error=EIO", 4),
    ]
    each(tmp_path, cases, lambda place, injection: _must_happen(place, injection, tally))


def inject_into_rollback(upgrade: SmallUpgrade, injection: Injection, tally: Tally) -> bool:
    """The same, while an upgraded server goes back; afterwards it has been upgraded again."""
    assert upgrade.run("upgrade").code == 0
    code, said, happened = run_injected(upgrade, injection, "rollback")
    outcome = "lost"
    try:
        nothing_left(upgrade)
        outcome = whole(upgrade)
        if injection.what.startswith("error"):
            assert code in DOCUMENTED, (code, said)
            assert "Traceback" not in said, said
        elif happened:
            assert code in KILLED, (code, said)
        if code == 0:
            assert outcome == "old", said
        upgrade.run("rollback")  # it finishes the one that was interrupted, or finds nothing to go back to
        if outcome == "old":
            assert whole(upgrade) == "old"
        recovered(upgrade, "upgrade")
    finally:
        if happened:
            tally.add(f"{injection.kind} of rollback", outcome)  # type: ignore[arg-type]  # old, new or lost
    return happened


def test_some_calls_of_a_rollback(tmp_path: Path, tally: Tally) -> None:
    upgrade = make_small_upgrade(tmp_path / "server")
    for injection in (
        Injection("rename", "signal=SIGKILL", 1),
        Injection("fsync", "signal=SIGKILL", 3),
        Injection("write", "error=ENOSPC", 4),
    ):
        assert inject_into_rollback(upgrade, injection, tally), f"{injection} did not happen"


def _must_happen(place: Path, injection: Injection, tally: Tally) -> None:
    assert inject(place, injection, tally), f"{injection} did not happen"


@pytest.mark.faults
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("what", ["signal=SIGKILL", *(f"error={name}" for name in ERRORS)])
def test_every_call(tmp_path: Path, tally: Tally, what: str) -> None:
    each(tmp_path, CALLS, lambda place, call: _swept(place, call, what, tally))


def _swept(place: Path, call: str, what: str, tally: Tally) -> None:
    assert sweep(place, call, what, tally) > 0, f"{call} is never called: the sweep swept nothing"


@pytest.mark.faults
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("what", ["signal=SIGKILL", *(f"error={name}" for name in ERRORS)])
def test_every_call_of_a_rollback(tmp_path: Path, tally: Tally, what: str) -> None:
    calls = ("fsync", "rename", "unlink", "openat", "write", "symlink")
    each(tmp_path, calls, lambda place, call: _swept_rollback(place, call, what, tally))


def _swept_rollback(place: Path, call: str, what: str, tally: Tally) -> None:
    upgrade, when = make_small_upgrade(place), 1
    while inject_into_rollback(upgrade, Injection(call, what, when), tally):
        when += 1
    assert when > 1, f"{call} is never called: the sweep swept nothing"


@pytest.mark.faults
@pytest.mark.timeout(7200)
def test_children_too(tmp_path: Path, tally: Tally) -> None:
    """Also uv and whatever else runs: a run may fail then, but nothing is lost."""
    cases = [
        Injection(call, what, when, children=True)
        for call in ("rename", "unlink", "write", "mkdir", "fsync")
        for what in ("signal=SIGKILL", *(f"error={name}" for name in ERRORS))
        for when in (1, 2, 3, 5, 8, 13, 21)
    ]
    hit: set[str] = set()
    each(tmp_path, cases, lambda place, injection: _child(place, injection, tally, hit))
    assert hit == {case.kind for case in cases}, "each kind must have happened at least once"


def _child(place: Path, injection: Injection, tally: Tally, hit: set[str]) -> None:
    if inject(place, injection, tally):
        hit.add(injection.kind)
