"""A filesystem that fills: while adopting, building, writing the journal, activating and going back.

The root of the upgrade lies on a small tmpfs with ballast: each case has a little more room than the one before.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.interruptions import each, nothing_left, recovered, whole
from tests.support.privileges import needs_mounts
from tests.support.small_upgrade import SmallUpgrade, make_small_upgrade
from tests.support.tally import Tally

pytestmark = needs_mounts
NO_ROOM = ("No space left on device", "disk is full", "disk I/O error", "is it full")


@dataclass(frozen=True)
class Room:
    """What is left for the upgrade: KiB, or inodes."""

    kibibytes: int = 0
    inodes: int = 0

    def __str__(self) -> str:
        return f"{self.inodes} inodes left" if self.inodes else f"{self.kibibytes} KiB left"


@contextmanager
def small_disk(folder: Path, room: Room) -> Iterator[SmallUpgrade]:
    """An upgrade whose root is on a filesystem with this much room."""
    made = make_small_upgrade(folder)
    kept = folder / "kept"
    made.root.rename(kept)
    made.root.mkdir()
    used = 1 + sum(1 for _ in kept.rglob("*"))
    limit = f"nr_inodes={used + room.inodes}" if room.inodes else "nr_inodes=100000"
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size=20m,{limit}", "tmpfs", made.root], check=True)
    try:
        for entry in kept.iterdir():
            subprocess.run(["cp", "-a", entry, made.root], check=True)
        if room.kibibytes:
            status = os.statvfs(made.root)
            ballast = status.f_bavail * status.f_frsize - (room.kibibytes << 10)
            with (made.root / "ballast").open("wb") as stream:
                stream.write(bytes(max(0, ballast)))
        from crossgrade.store.manifest import build_manifest

        yield SmallUpgrade(folder, build_manifest(made.env))
    finally:
        subprocess.run(["umount", "-l", made.root], check=True)


def filled(folder: Path, room: Room, tally: Tally) -> bool:
    """True when there was not enough room; then everything has been checked and counted."""
    with small_disk(folder, room) as upgrade:
        answer = upgrade.run("upgrade")
        said = answer.stdout + answer.stderr
        outcome = "lost"
        try:
            nothing_left(upgrade)
            outcome = whole(upgrade)
            assert answer.code in (0, 1, 2, 6), (answer.code, said)
            assert "Traceback" not in said, said
            if answer.code:
                assert outcome == "old", said
                assert any(words in said for words in NO_ROOM), said
        finally:
            if answer.code:
                tally.add("no inodes" if room.inodes else "full disk", outcome)  # type: ignore[arg-type]
        subprocess.run(["mount", "-o", "remount,size=40m,nr_inodes=100000", upgrade.root], check=True)
        (upgrade.root / "ballast").unlink(missing_ok=True)
        recovered(upgrade, "upgrade")
    shutil.rmtree(folder)
    return answer.code != 0


def test_some_room(tmp_path: Path, tally: Tally) -> None:
    cases = [Room(4), Room(100), Room(300), Room(inodes=60)]
    each(tmp_path, cases, lambda place, room: _too_small(place, room, tally))


def _too_small(place: Path, room: Room, tally: Tally) -> None:
    assert filled(place, room, tally), f"{room} was enough"


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_from_nothing_to_enough(tmp_path: Path, tally: Tally) -> None:
    found: list[bool] = []
    cases = [*(Room(size) for size in range(4, 640, 12)), *(Room(inodes=count) for count in range(1, 120, 3))]
    each(tmp_path, cases, lambda place, room: found.append(filled(place, room, tally)))
    assert True in found
    assert False in found, "the last cases have enough room"


def test_a_rollback_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "server", Room()) as upgrade:
        assert upgrade.run("upgrade").code == 0
        fill(upgrade.root / "ballast")
        answer = upgrade.run("rollback")
        assert answer.code == 0, answer.stderr
        assert whole(upgrade) == "old"
        assert upgrade.run("rollback", "--to", "2").code == 0, "what was set aside is enough for several"
        (upgrade.root / "ballast").unlink()
        assert upgrade.run("status").code == 0
        recovered(upgrade, "upgrade")
        assert (upgrade.store.root / "reserve").exists()


def fill(path: Path) -> None:
    """Write until nothing goes any more."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match="No space"):
        for _ in iter(lambda: os.write(descriptor, bytes(4096)), 0):
            pass
    os.close(descriptor)


def test_a_host_that_nobody_confirms_goes_back_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "server", Room(kibibytes=8 << 10)) as upgrade:
        assert upgrade.run("upgrade", "--confirm-within", "4").code == 0
        with suppress(OSError), (upgrade.root / "more ballast").open("wb") as stream:
            while True:
                stream.write(bytes(1 << 12))
        assert os.statvfs(upgrade.root).f_bavail == 0
        deadline = time.monotonic() + 40
        while upgrade.store.active() != 1 or upgrade.left_over():
            assert time.monotonic() < deadline, (upgrade.root / "store" / "watcher.log").read_text()
            time.sleep(0.2)
        assert upgrade.outcome() == "old"
        assert upgrade.status()["confirmation"] is None
