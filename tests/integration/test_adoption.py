"""Adoption on real filesystems: what stands against it is said before anything is touched, and what runs goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.support.commands import Answer, crossgrade
from tests.support.privileges import needs_mounts, needs_strace
from tests.support.small_upgrade import SmallUpgrade, make_small_upgrade
from tests.support.strace import injecting

from crossgrade.errors import StoreError
from crossgrade.store.adoptable import check_adoptable, mount_points
from crossgrade.store.manifest import build_manifest


@contextmanager
def mounted(*arguments: str | Path) -> Iterator[None]:
    subprocess.run(["mount", *arguments], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", arguments[-1]], check=True)


def with_root(upgrade: SmallUpgrade, command: str, root: Path) -> Answer:
    """The same environment, with the store elsewhere."""
    return crossgrade(command, "--playbook", upgrade.playbook, "--root", root, "-e", f"env={upgrade.env}")


def is_refused(upgrade: SmallUpgrade, words: str, root: Path | None = None) -> None:
    """In the plan and in the upgrade alike, with a way out, and with the environment as it was."""
    for command in ("plan", "upgrade"):
        answer = with_root(upgrade, command, root or upgrade.root)
        assert answer.code == 1, answer.stdout + answer.stderr
        assert words in answer.stdout + answer.stderr
        assert "Traceback" not in answer.stderr
    assert not upgrade.env.is_symlink()
    assert build_manifest(upgrade.env).digest == upgrade.before.digest


@pytest.fixture
def upgrade(tmp_path: Path) -> SmallUpgrade:
    return make_small_upgrade(tmp_path / "server")


# ---- refusals


def test_a_symlink(upgrade: SmallUpgrade) -> None:
    real = upgrade.root / "real"
    upgrade.env.rename(real)
    upgrade.env.symlink_to(real)
    answer = upgrade.run("plan")
    assert answer.code == 1
    assert "is a symlink, not the environment itself" in answer.stderr
    assert build_manifest(real).digest == upgrade.before.digest


def test_a_parent_that_is_a_symlink_is_fine(upgrade: SmallUpgrade) -> None:
    alias = upgrade.folder / "alias"
    alias.symlink_to(upgrade.root)
    assert upgrade.run("upgrade", "-e", f"env={alias}/env").code == 0
    assert upgrade.version() == "2.0"


def test_no_venv(upgrade: SmallUpgrade) -> None:
    (upgrade.env / "pyvenv.cfg").unlink()
    answer = upgrade.run("plan")
    assert answer.code == 1
    assert "has no pyvenv.cfg" in answer.stderr


def test_the_store_inside_the_environment(upgrade: SmallUpgrade) -> None:
    answer = with_root(upgrade, "plan", upgrade.env / "inside")
    assert answer.code == 1
    assert "lies inside" in answer.stderr
    assert build_manifest(upgrade.env).digest == upgrade.before.digest


@needs_mounts
@pytest.mark.parametrize("kind", ["tmpfs", "bind"])
def test_the_store_on_another_filesystem_or_mount(upgrade: SmallUpgrade, tmp_path: Path, kind: str) -> None:
    place, other = tmp_path / "place", tmp_path / "other"
    place.mkdir()
    other.mkdir()
    how = ["-t", "tmpfs", "tmpfs"] if kind == "tmpfs" else ["--bind", str(other)]
    with mounted(*how, place):
        is_refused(upgrade, "different filesystems", place / "root")


@needs_mounts
def test_a_mount_point_and_a_mount_inside(upgrade: SmallUpgrade) -> None:
    inside = upgrade.env / "lib"
    with mounted("-t", "tmpfs", "tmpfs", inside):
        answer = upgrade.run("plan")
        assert answer.code == 1
        assert f"something is mounted inside {upgrade.env}, at {inside}" in answer.stderr
    with mounted("--bind", upgrade.env, upgrade.env):
        answer = upgrade.run("plan")
        assert answer.code == 1
        assert "is a mount point" in answer.stderr
    assert upgrade.run("upgrade").code == 0


@needs_mounts
def test_a_read_only_filesystem(upgrade: SmallUpgrade) -> None:
    with ExitStack() as stack:
        stack.enter_context(mounted("--bind", upgrade.root, upgrade.root))
        subprocess.run(["mount", "-o", "remount,bind,ro", upgrade.root], check=True)
        answer = upgrade.run("plan")
        assert answer.code == 1
        assert "read-only filesystem" in answer.stderr
        assert upgrade.run("upgrade").code == 1
    assert build_manifest(upgrade.env).digest == upgrade.before.digest


@needs_mounts
@pytest.mark.parametrize("flag", ["i", "a"])
@pytest.mark.parametrize("which", ["env", "."])
def test_immutable_and_append_only(upgrade: SmallUpgrade, flag: str, which: str) -> None:
    folder = upgrade.root / which
    if subprocess.run(["chattr", f"+{flag}", folder], capture_output=True, check=False).returncode:
        pytest.skip("this filesystem has no such flags")
    try:
        answer = upgrade.run("plan")
        assert answer.code == 1
        assert {"i": "is immutable", "a": "is append-only"}[flag] in answer.stderr
        assert upgrade.run("upgrade").code in (1, 2)
    finally:
        subprocess.run(["chattr", f"-{flag}", folder], check=True)
    assert build_manifest(upgrade.env).digest == upgrade.before.digest


@contextmanager
def as_nobody() -> Iterator[None]:
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@needs_mounts
def test_a_sticky_parent_and_a_parent_of_somebody_else(upgrade: SmallUpgrade) -> None:
    for folder in (upgrade.folder, *upgrade.folder.parents):
        if folder.stat().st_mode & 0o777 == 0o700:  # those of pytest
            folder.chmod(0o755)
    with as_nobody(), pytest.raises(StoreError, match="is not writable"):
        check_adoptable(upgrade.store, upgrade.env)
    upgrade.root.chmod(0o1777)
    with as_nobody(), pytest.raises(StoreError, match="is sticky"):
        check_adoptable(upgrade.store, upgrade.env)
    os.chown(upgrade.env, 65534, 65534)
    with as_nobody():
        check_adoptable(upgrade.store, upgrade.env)


@needs_mounts
def test_a_layer_of_a_container(tmp_path: Path) -> None:
    """A venv that lies in a lower layer cannot be renamed there; one that was made in the container can."""
    lower = make_small_upgrade(tmp_path / "image" / "server")
    for name in ("upper", "work", "merged"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tmp_path}/image,upperdir={tmp_path}/upper,workdir={tmp_path}/work,redirect_dir=off"
    with mounted("-t", "overlay", "overlay", "-o", options, tmp_path / "merged"):
        inside = SmallUpgrade(tmp_path / "merged" / "server", lower.before)
        answer = inside.run("upgrade")
        assert answer.code == 1, answer.stdout + answer.stderr
        assert "a layer of a container's image" in answer.stdout + answer.stderr
        assert build_manifest(inside.env).digest == lower.before.digest
        is_refused(inside, "a layer of a container's image")  # the store is there now: the plan can ask too
        made_inside = make_small_upgrade(tmp_path / "merged" / "second")
        assert made_inside.run("upgrade").code == 0
        assert made_inside.version() == "2.0"


def test_mount_points_with_odd_names() -> None:
    text = "36 35 98:0 / /mnt/with\\040space rw - ext4 /dev/sda rw\n37 35 98:0 / / rw - ext4 /dev/sda rw\n"
    assert mount_points(text) == {Path("/mnt/with space"), Path("/")}


# ---- without RENAME_EXCHANGE


def without_exchange(upgrade: SmallUpgrade, command: str, *more: str) -> Answer:
    """The real program, to whom the real kernel answers as a filesystem without RENAME_EXCHANGE does."""
    argv = [*injecting("renameat2:error=EINVAL", *more), *upgrade.argv(command)]
    completed = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return Answer(completed.returncode, completed.stdout, completed.stderr)


@needs_strace
def test_two_steps_where_one_is_not_possible(upgrade: SmallUpgrade) -> None:
    answer = without_exchange(upgrade, "upgrade")
    assert answer.code == 0, answer.stderr
    assert upgrade.outcome() == "new"
    assert upgrade.run("rollback").code == 0
    assert upgrade.outcome() == "old"


@needs_strace
@pytest.mark.parametrize("command", ["upgrade", "rollback"])
def test_killed_between_the_two_steps(upgrade: SmallUpgrade, command: str) -> None:
    # the first link is the one that waits where the venv will be, the second the one at the old path
    killed = without_exchange(upgrade, "upgrade", "symlink:signal=SIGKILL:when=2")
    assert killed.code in (-signal.SIGKILL, 128 + signal.SIGKILL), killed.stderr
    assert not upgrade.env.exists(), "this is the moment in which the path is not there"
    answer = without_exchange(upgrade, command)
    assert answer.code == 0, answer.stderr
    assert upgrade.outcome() == ("new" if command == "upgrade" else "old")
    assert upgrade.version() == ("2.0" if command == "upgrade" else "1.0")
    if command == "upgrade":
        assert "completed: [localhost] => Back up: generation 1 is adopted" in answer.stdout


@needs_strace
def test_taken_back_where_names_cannot_be_exchanged(upgrade: SmallUpgrade) -> None:
    killed = without_exchange(upgrade, "upgrade", "symlink:signal=SIGKILL:when=2")
    assert killed.code != 0
    manifest = upgrade.store.manifest_path(1)
    manifest.write_bytes(manifest.read_bytes()[:-10])  # nothing proves now that it is whole: it must go back
    answer = without_exchange(upgrade, "rollback")
    assert answer.code == 0, answer.stderr
    assert not upgrade.env.is_symlink()
    assert build_manifest(upgrade.env).digest == upgrade.before.digest
    assert upgrade.run("upgrade").code == 0


# ---- what runs goes on


@needs_strace
@pytest.mark.parametrize("way", ["exchange", "two steps"])
def test_a_live_server_goes_on(upgrade: SmallUpgrade, tmp_path: Path, way: str) -> None:
    """It keeps answering, imports a module and reads files by absolute and by relative path, before and after."""
    script = tmp_path / "serve.py"
    (upgrade.env / "data.txt").write_text("data")
    (next(upgrade.env.glob("lib/python3*/site-packages")) / "later.py").write_text("WORD = 'later'\n")
    script.write_text(
        "import http.server, pathlib, sys\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        if self.path == '/import':\n            import later; text = later.WORD\n"
        "        elif self.path == '/absolute':\n"
        f"            text = pathlib.Path({str(upgrade.env)!r}, 'data.txt').read_text()\n"
        "        else:\n            text = pathlib.Path('data.txt').read_text()\n"
        "        self.send_response(200); self.end_headers(); self.wfile.write(text.encode())\n"
        "    def log_message(self, *arguments): pass\n"
        "server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)\n"
        "print(server.server_port, flush=True)\nserver.serve_forever()\n"
    )
    python = upgrade.env / "bin" / "python"
    with subprocess.Popen([python, "-B", script], cwd=upgrade.env, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        try:
            assert ask(port, "/relative") == "data"
            run: Callable[..., Answer] = without_exchange if way == "two steps" else SmallUpgrade.run
            playbook = upgrade.playbook.read_text()
            upgrade.playbook.write_text(playbook[: playbook.index("    - name: Folder")])
            assert run(upgrade, "upgrade").code == 0
            assert upgrade.env.is_symlink()
            assert [ask(port, path) for path in ("/relative", "/absolute", "/import")] == ["data", "data", "later"]
        finally:
            server.terminate()


def ask(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        text: str = answer.read().decode()
        return text
