"""A plan says what it will take, and is refused where there is no room for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.support.commands import Answer, crossgrade
from tests.support.privileges import can_mount
from tests.support.small_upgrade import make_small_upgrade
from tests.support.toolkits import uv_program

from crossgrade.engine.space import missing_room
from crossgrade.modules.contract import LockRequest, Space
from crossgrade.modules.offers import locked_offers, unpacked_bytes
from crossgrade.modules.uv import resolve_lock
from crossgrade.process import Completed, run_process

PLAYBOOK = """
- hosts: localhost
  tasks:
    - python_env:
        path: "{{ crossgrade_root }}/env"
        requirements: ["numpy>=2.2,<3"]
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    if not can_mount():
        pytest.skip("mounting a filesystem is not allowed here")
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def run(folder: Path, command: str, root: Path, *more: str) -> Answer:
    (folder / "play.yml").write_text(PLAYBOOK)
    return crossgrade(command, "--playbook", folder / "play.yml", "--root", root, *more)


def test_too_small_a_disk_is_refused_before_anything_is_made(small: Path, tmp_path: Path) -> None:
    for command in ("plan", "upgrade"):
        answer = run(tmp_path, command, small / "root")
        assert answer.code == 1, answer.stdout
        assert f"the filesystem of {small}" in answer.stderr
        assert re.search(r"has \d+ MB left, and about \d+ MB are needed \(env \d+ MB\)", answer.stderr)
        assert "Nothing was changed" in answer.stderr
    assert not (small / "root" / "env").exists()
    anyway = run(tmp_path, "plan", small / "root", "-e", "crossgrade_ignore_space=true")
    assert anyway.code == 0, anyway.stderr


def test_enough_room(tmp_path: Path) -> None:
    assert run(tmp_path, "plan", tmp_path / "root").code == 0


def test_each_filesystem_by_itself(small: Path, tmp_path: Path) -> None:
    here, there = Space(tmp_path / "new" / "deep", 1000, "a"), Space(small / "new", 15 << 20, "b")
    assert missing_room([here, there]) == ""
    more = Space(small / "other", 10 << 20, "c")
    assert "b 16 MB, c 10 MB" in missing_room([here, there, more])


def test_the_archive_counts_where_it_goes(small: Path, tmp_path: Path) -> None:
    upgrade = make_small_upgrade(tmp_path / "server")
    (upgrade.env / "large").write_bytes(bytes(30 << 20))
    task = 'venv_backup: {path: "{{ env }}"'
    upgrade.playbook.write_text(upgrade.playbook.read_text().replace(task, f"{task}, archive: {small}"))
    answer = upgrade.run("upgrade")
    assert answer.code == 1
    assert "the archive 31 MB" in answer.stderr
    assert not upgrade.env.is_symlink()


def ask(argv: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout: float = 60.0) -> Completed:
    return run_process(argv, env={**os.environ, **(environment or {})}, timeout=timeout)


def test_the_estimate_is_not_too_low_for_real_wheels(tmp_path: Path) -> None:
    request = LockRequest(("numpy", "six"), sys.executable)
    lock = resolve_lock(request, ask)
    estimate = unpacked_bytes(locked_offers(request, lock, ask))
    env = tmp_path / "env"
    subprocess.run([uv_program(), "-q", "venv", env], check=True)
    names = [f"{dist.name}=={dist.version}" for dist in lock.dists]
    subprocess.run([uv_program(), "-q", "pip", "install", "--python", env / "bin" / "python", *names], check=True)
    taken = sum(path.lstat().st_size for path in env.rglob("*") if path.is_file() and not path.is_symlink())
    assert 0.5 * taken < estimate < 4 * taken
