"""The private folder of one process: who may look in, and who clears up after whom."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from crossgrade.errors import CrossgradeError, ExitCode
from crossgrade.store.scratch import scratch

# As `plan --deep` does it: a signal ends the body, and the folder goes.
_BODY = """
import sys, time
from pathlib import Path
from crossgrade.commands.common import guarded
from crossgrade.engine.interrupt import interruptible
from crossgrade.store.scratch import scratch

def body():
    with interruptible(), scratch(Path(sys.argv[1])) as folder:
        (folder / "venv").mkdir()
        (folder / "venv" / "link").symlink_to("/usr/bin/env")
        print(folder, flush=True)
        time.sleep(60)
    return 0

sys.exit(guarded(body))
"""


def busy(root: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that is in the middle of its work, and its folder."""
    process = subprocess.Popen([sys.executable, "-c", _BODY, str(root)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def ended(process: subprocess.Popen[str], number: int) -> int:
    process.send_signal(number)
    with process:
        return process.wait(timeout=30)


def test_it_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "er"
    with scratch(root) as folder:
        assert [stat.S_IMODE(path.stat().st_mode) for path in (root, folder)] == [0o700, 0o700]
        (folder / "file").write_text("x")
        with scratch(root) as other:
            assert other != folder
        assert folder.is_dir(), "another process clears up only what is dead"
    assert list(root.glob("deep-*")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing(tmp_path: Path, number: int) -> None:
    process, folder = busy(tmp_path)
    assert folder.is_dir()
    assert ended(process, number) == ExitCode.INTERRUPTED
    assert list(tmp_path.glob("deep-*")) == []


def test_what_a_killed_process_left_is_cleared_up_by_the_next(tmp_path: Path) -> None:
    process, dead = busy(tmp_path)
    assert ended(process, signal.SIGKILL) == -signal.SIGKILL
    assert dead.is_dir()
    alive, at_work = busy(tmp_path)
    assert not dead.exists()
    with scratch(tmp_path):
        assert at_work.is_dir()
    ended(alive, signal.SIGTERM)
    assert list(tmp_path.glob("deep-*")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "scratch"
    root.mkdir()
    os.chown(root, 65534, 65534)
    with pytest.raises(CrossgradeError, match="not a folder of yours"), scratch(root):
        pass


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "scratch").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CrossgradeError, match="not a folder of yours"), scratch(tmp_path / "scratch"):
        pass
