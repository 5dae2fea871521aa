"""Clones: a tree copied as it is, on filesystems with and without reflinks, and a candidate that begins as one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.commands import Answer, crossgrade
from tests.support.privileges import needs_mounts
from tests.support.small_upgrade import make_wheel
from tests.support.toolkits import uv_program

from crossgrade.errors import StoreError
from crossgrade.store.clone import clone_tree
from crossgrade.store.layout import Store
from crossgrade.store.manifest import build_manifest, compare, read_manifest


def tree(folder: Path) -> Path:
    """A tree with everything that a venv may hold, and some things that it should not."""
    source = folder / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "empty").mkdir(mode=0o750)
    (source / "program").write_bytes(os.urandom(300_000))
    (source / "program").chmod(0o4755)
    (source / "twin").hardlink_to(source / "program")
    (source / "nothing").touch()
    with (source / "holes").open("wb") as stream:
        stream.write(b"begin")
        stream.seek(50_000_000)
        stream.write(b"end")
    (source / "all hole").touch()
    os.truncate(source / "all hole", 10_000_000)
    (source / "deep" / "link").symlink_to("er")
    (source / "away").symlink_to("/nowhere/at all")
    (source / "new\nline \udcff").write_text("odd")
    os.setxattr(source / "nothing", "user.note", b"kept")
    os.utime(source / "nothing", ns=(1, 1_600_000_000_123_456_789))
    if os.geteuid() == 0:
        os.chown(source / "deep" / "er", 1234, 1235)
    os.utime(source / "deep", ns=(1, 1_500_000_000_000_000_007))
    return source


def same(source: Path, copy: Path) -> None:
    assert build_manifest(copy).digest == build_manifest(source).digest
    for path in source.rglob("*"):
        there = copy / path.relative_to(source)
        assert there.lstat().st_mtime_ns == path.lstat().st_mtime_ns, path
        assert there.lstat().st_ino != path.lstat().st_ino or there.lstat().st_dev != path.lstat().st_dev
    assert os.getxattr(copy / "nothing", "user.note") == b"kept"
    assert (copy / "twin").samefile(copy / "program")
    assert (copy / "holes").stat().st_blocks * 512 < 1_000_000
    assert (copy / "all hole").stat().st_blocks == 0


def test_a_copy_is_the_same_and_is_no_link_to_it(tmp_path: Path) -> None:
    source = tree(tmp_path)
    before = build_manifest(source)
    cloned = clone_tree(source, tmp_path / "copy")
    assert cloned.files == 5
    same(source, tmp_path / "copy")
    with (tmp_path / "copy" / "program").open("r+b") as stream:
        stream.write(b"written in place")
    (tmp_path / "copy" / "deep" / "er").chmod(0o700)
    assert compare(before, source, full=True).identical
    assert build_manifest(source).digest == before.digest


def test_what_cannot_be_copied_is_named(tmp_path: Path) -> None:
    source = tree(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(source / "socket"))
        with pytest.raises(StoreError, match="socket is neither"):
            clone_tree(source, tmp_path / "copy")


@contextmanager
def mounted(folder: Path, kind: str) -> Iterator[Path]:
    image, place = folder / "image", folder / "mounted"
    place.mkdir()
    with image.open("wb") as stream:
        stream.truncate(400 << 20)
    options = ["-q", "-f"] if kind == "btrfs" else ["-q", "-m", "reflink=1"]
    subprocess.run([f"mkfs.{kind}", *options, image], check=True)
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@needs_mounts
@pytest.mark.parametrize("kind", ["btrfs", "xfs"])
def test_reflinks_cost_no_space_and_are_copies(tmp_path: Path, kind: str) -> None:
    if shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"mkfs.{kind} is not installed here (CI installs it)")
    with mounted(tmp_path, kind) as place:
        source = tree(place)
        (source / "large").write_bytes(os.urandom(100 << 20))
        os.sync()
        free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
        cloned = clone_tree(source, place / "copy")
        os.sync()
        assert cloned.way == "reflink"
        assert free - os.statvfs(place).f_bavail * os.statvfs(place).f_frsize < 10 << 20
        assert build_manifest(place / "copy").digest == build_manifest(source).digest
        with (place / "copy" / "large").open("r+b") as stream:
            stream.write(b"written in place")
        assert (source / "large").read_bytes()[:16] != b"written in place"


# ---- python_env with base: clone

PLAYBOOK = """
- hosts: localhost
  vars: {env: "{{ crossgrade_root }}/env", version: "2.0"}
  tasks:
    - venv_backup: {path: "{{ env }}"}
    - python_env:
        base: clone
        requirements: [six==1.17.0]
        wheels: ["{{ playbook_dir }}/small_engine-{{ version }}-py3-none-any.whl"]
      register: candidate
    - smoke_check: {generation: "{{ candidate.generation }}", imports: [six, small_engine, attr]}
    - activate: {generation: "{{ candidate.generation }}"}
"""


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A working environment with a dist that nobody names (attrs), locally patched, and one to be upgraded (six)."""
    for version in ("1.0", "2.0", "3.0"):
        make_wheel(tmp_path, version)
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    env = tmp_path / "root" / "env"
    env.parent.mkdir()
    subprocess.run([uv_program(), "-q", "venv", env], check=True)
    wheel = str(tmp_path / "small_engine-1.0-py3-none-any.whl")
    install = [uv_program(), "-q", "pip", "install", "--python", str(env / "bin" / "python")]
    subprocess.run([*install, "six==1.16.0", "attrs==24.2.0", wheel], check=True)
    patched = next(env.glob("lib/python3*/site-packages/attr/__init__.py"))
    patched.write_text(patched.read_text() + "\nPATCHED = True\n")
    return tmp_path


def run(server: Path, command: str, *arguments: str) -> Answer:
    return crossgrade(command, "--playbook", server / "play.yml", "--root", server / "root", *arguments)


def ask(python: Path, code: str) -> str:
    return subprocess.run([python, "-I", "-B", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_a_candidate_keeps_what_the_requirements_do_not_name(server: Path) -> None:
    before = build_manifest(server / "root" / "env").digest
    planned = run(server, "plan", "-D")
    assert planned.code == 0, planned.stderr
    assert "on a clone of generation 1" in planned.stdout
    assert "attrs" not in planned.stdout, "a dist that stays is no difference"
    answer = run(server, "upgrade", "--json")
    assert answer.code == 0, answer.stdout + answer.stderr
    assert answer.ended["differs"] == 0
    store = Store(server / "root" / "store")
    assert build_manifest(store.venv(1)).digest == before
    python = server / "root" / "env" / "bin" / "python"
    assert ask(python, "import six, attr, small_engine as e; print(six.__version__, attr.PATCHED, e.VERSION)") == (
        "1.17.0 True 2.0"
    )
    script = (store.venv(2) / "bin" / "small-engine").read_text()
    assert str(store.venv(2)) in script
    assert str(server / "root" / "env") not in script
    assert compare(read_manifest(store.manifest_path(2)), store.venv(2), full=True).identical
    assert dict(store.generation(2).contents["dists"]) == {
        "attrs": "24.2.0", "six": "1.17.0", "small-engine": "2.0",
    }  # fmt: skip
    again = run(server, "upgrade", "--json")
    assert again.code == 0
    assert again.recap["changed"] == 0, "the active generation is what was asked for: it is not cloned again"


def test_another_request_clones_what_is_active_then(server: Path) -> None:
    assert run(server, "upgrade").code == 0
    assert run(server, "upgrade", "-e", "version=3.0").code == 0
    store = Store(server / "root" / "store")
    assert store.active() == 3
    assert store.generation(3).contents["base"] == store.generation(2).manifest
    assert ask(server / "root" / "env" / "bin" / "python", "import attr; print(attr.PATCHED)") == "True"
    assert run(server, "rollback").code == 0
    found = run(server, "plan", "-e", "version=3.0", "--json").of_kind("plan")[-1]["plan"]["tasks"]
    assert [task["action"] for task in found if task["module"] == "python_env"] == ["ok"]


def test_without_anything_to_clone(server: Path) -> None:
    text = PLAYBOOK.replace('    - venv_backup: {path: "{{ env }}"}\n', "")
    (server / "play.yml").write_text(text)
    answer = run(server, "upgrade")
    assert answer.code == 1
    assert "no active generation that could be cloned" in answer.stderr


def test_cloning_touches_nothing_of_a_running_server(server: Path) -> None:
    env = server / "root" / "env"
    code = (
        "import sys, time, six\nprint(six.__version__, flush=True)\ntime.sleep(1.5)\nimport attr\nprint(attr.PATCHED)"
    )
    with subprocess.Popen([env / "bin" / "python", "-B", "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1.16.0\n"
        began = time.monotonic()
        assert run(server, "upgrade").code == 0
        assert time.monotonic() - began > 0.3
        assert process.communicate(timeout=60)[0] == "True\n"
