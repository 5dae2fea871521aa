"""The reader of the output goes away, or the disk that it goes to is full: neither may fail a run."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest
from tests.support.interruptions import nothing_left, whole
from tests.support.small_upgrade import SmallUpgrade, make_small_upgrade

FULL = Path("/dev/full")


@pytest.fixture
def upgrade(tmp_path: Path) -> SmallUpgrade:
    return make_small_upgrade(tmp_path)


def until_the_reader_goes(argv: list[str], lines: int) -> tuple[int, str]:
    """Read so many lines and close the pipe, as `| head` does. Exit code and stderr."""
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        for _ in range(lines):
            assert running.stdout.readline()
        running.stdout.close()
        return running.wait(timeout=60), running.stderr.read()


@pytest.mark.parametrize("lines", [30, 40])
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_the_reader_of_a_run_goes(upgrade: SmallUpgrade, lines: int, options: tuple[str, ...]) -> None:
    code, said = until_the_reader_goes(upgrade.argv("upgrade", *options), lines)
    assert code == 0, said
    assert "the output could not be written to its end: Broken pipe" in said
    assert "Traceback" not in said
    assert whole(upgrade) == "new"
    assert upgrade.status()["interrupted"] is None
    assert len(list(upgrade.store.root.glob("runs/*/report.json"))) == 1


def test_the_reader_goes_while_a_failed_run_is_taken_back(upgrade: SmallUpgrade) -> None:
    argv = upgrade.argv("upgrade", "--json", "-e", "imports=missing")
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        assert running.stdout is not None
        while '"rolling_back"' not in (line := running.stdout.readline()) and '"rolled_back"' not in line:
            assert line
        running.stdout.close()
        assert running.wait(timeout=60) == 2
    assert whole(upgrade) == "old"
    assert upgrade.status()["interrupted"] is None


def run_into(upgrade: SmallUpgrade, command: str, *, stdout: Path, stderr: Path, more: tuple[str, ...] = ()) -> int:
    with stdout.open("w") as out, stderr.open("w") as err:
        argv = upgrade.argv(command, *more)
        return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, check=False).returncode


def test_output_to_a_full_disk(upgrade: SmallUpgrade, tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    assert run_into(upgrade, "upgrade", stdout=FULL, stderr=errors) == 1, "nobody can have read the plan"
    assert "No space left on device" in errors.read_text()
    assert not upgrade.store.journal_path.exists() or upgrade.status()["interrupted"] is None
    assert whole(upgrade) == "old"
    assert run_into(upgrade, "upgrade", stdout=FULL, stderr=FULL, more=("--json",)) == 1
    assert run_into(upgrade, "upgrade", stdout=Path(os.devnull), stderr=FULL) == 0
    assert whole(upgrade) == "new"
    assert run_into(upgrade, "rollback", stdout=FULL, stderr=errors) == 0
    assert "could not be written to its end" in errors.read_text()
    assert whole(upgrade) == "old"
    assert run_into(upgrade, "rollback", stdout=FULL, stderr=FULL) == 1, "there is nothing to go back to"
    assert run_into(upgrade, "status", stdout=FULL, stderr=errors) == 1
    assert "Traceback" not in errors.read_text()
    nothing_left(upgrade)


@pytest.mark.timeout(60)
def test_no_answer_is_no(upgrade: SmallUpgrade) -> None:
    """Control-D at the question."""
    controller, terminal = os.openpty()
    running = subprocess.Popen(
        upgrade.argv("upgrade"), stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    said = b""
    while b"[y/N]" not in said:
        said += os.read(controller, 4096)
    os.write(controller, b"\x04")
    with contextlib.suppress(OSError):  # EIO: the other side is closed
        while data := os.read(controller, 4096):
            said += data
    os.close(controller)
    assert running.wait() == 1
    assert b"not confirmed" in said
    assert b"Traceback" not in said
    assert whole(upgrade) == "old"
