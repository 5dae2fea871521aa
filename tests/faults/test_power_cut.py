"""A power cut at any moment: recovery tells the old environment from the new one, whatever was not written yet."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.interruptions import each, whole
from tests.support.power_cut import Operation, Recording, garbage, nothing, some, zeros
from tests.support.privileges import needs_strace
from tests.support.small_upgrade import SmallUpgrade, make_small_upgrade
from tests.support.tally import Tally

Kept = Callable[[Operation], bytes | bool | None]

pytestmark = needs_strace


def record(folder: Path) -> tuple[SmallUpgrade, Recording]:
    upgrade = make_small_upgrade(folder / "server")
    return upgrade, Recording(upgrade, folder)


def survives(upgrade: SmallUpgrade, recording: Recording, cut: int, kept: Kept, tally: Tally) -> None:
    recording.leave(cut, kept)
    outcome = "lost"
    try:
        outcome = whole(upgrade)
        status = upgrade.run("status")
        assert "Traceback" not in status.stderr, status.stderr
        assert status.code == 0, status.stdout + status.stderr
        assert whole(upgrade) == outcome
        back = upgrade.run("upgrade") if cut % 2 else upgrade.run("rollback")
        assert "Traceback" not in back.stderr, back.stderr
        assert back.code == 0 or not cut % 2, back.stderr
        whole(upgrade)
        answer = upgrade.run("upgrade", "--json")
        assert answer.code == 0, answer.stderr
        assert whole(upgrade) == "new"
    finally:
        tally.add("power cut", outcome)  # type: ignore[arg-type]  # old, new or lost


def test_the_model_of_the_disk_is_the_disk(tmp_path: Path) -> None:
    """With nothing lost, the replayed run is the run: so the recording misses nothing."""
    upgrade, recording = record(tmp_path)
    recording.leave(len(recording.operations), lambda _: True)
    assert whole(upgrade) == "new"
    answer = upgrade.run("upgrade", "--json")
    assert answer.code == 0, answer.stderr
    assert answer.recap["changed"] == 0
    assert sum(operation.certain_from is None for operation in recording.operations) < len(recording.operations) / 2


def test_some_cuts(tmp_path: Path, tally: Tally) -> None:
    upgrade, recording = record(tmp_path)
    cuts = recording.cuts()
    for number, cut in enumerate(cuts[:: max(1, len(cuts) // 6)]):
        survives(upgrade, recording, cut, (nothing, garbage, some(number))[number % 3], tally)


@pytest.mark.faults
@pytest.mark.timeout(7200)
def test_every_cut(tmp_path: Path, tally: Tally) -> None:
    ways: dict[str, tuple[int, Callable[[int], Kept]]] = {  # at every cut, or at every second or third
        "nothing": (1, lambda _: nothing),
        "garbage": (2, lambda _: garbage),
        "zeros": (3, lambda _: zeros),
        "some": (2, some),
    }

    def cut_everywhere(folder: Path, way: str) -> None:
        upgrade, recording = record(folder)
        step, kept = ways[way]
        for cut in recording.cuts()[::step]:
            names = ", ".join(operation.name for operation in recording.operations[max(0, cut - 3) : cut])
            print(f"{way}: cut after {cut} operations ({names})")  # noqa: T201 - shown when the test fails
            survives(upgrade, recording, cut, kept(cut), tally)
        shutil.rmtree(folder)

    each(tmp_path, ways, cut_everywhere)
