"""`bench store` on a tiny venv: every row is there, nothing is left behind, and the tree is as it was."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.commands import CHECKOUT, PROGRAM, crossgrade, processes_below, snapshot

from crossgrade.cli import make_collection, with_options

ROWS = (
    *("blake3, ", "cp -a ", "sha256sum", "cp -a, then sha256sum", "tar | cat", "cp -al", "tar | zstd -1"),
    *("crossgrade upgrade: adopt + manifest", "crossgrade verify, nothing changed", "crossgrade verify --full"),
    *("crossgrade export", "crossgrade rollback", "machine: ", "page cache: "),
    *("adopt + manifest / fastest full hash pass, cold", "cp -a and sha256sum / adopt + manifest", "export, peak"),
)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    uv = str(PROGRAM.with_name("uv"))
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(tmp_path / "venv")], check=True)
    for number in range(300):
        (tmp_path / "venv" / "lib" / f"module{number}.py").write_text(f"number = {number}\n" * number)
    return tmp_path / "venv"


@pytest.mark.skipif(shutil.which("zstd") is None, reason="zstd is a peer")
def test_every_row_is_printed(tmp_path: Path, venv: Path) -> None:
    before = snapshot(venv)
    done = crossgrade("bench", "store", "--tree", venv, "--root", tmp_path / "bench", cwd=tmp_path)
    assert done.code == 0, done.stderr
    for row in ROWS:
        assert row in done.stdout, row
    files = sum(path.is_file() and not path.is_symlink() for path in venv.rglob("*"))
    assert f"{files} files" in done.stdout
    assert snapshot(venv) == before
    assert list((tmp_path / "bench").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--what", "nothing"], "nothing is measured by that name"),
        (["store", "--gigabytes", "many"], "--gigabytes needs a number"),
        (["store", "--gigabytes", "-1"], "--gigabytes needs a number"),
        (["store", "--tree", "/etc"], "not a venv"),
    ],
)
def test_wrong_calls_of_bench(tmp_path: Path, arguments: list[str], words: str) -> None:
    answer = crossgrade("bench", *arguments, "--root", tmp_path, cwd=tmp_path)
    assert (answer.code, words in answer.stderr) == (5, True), answer.stderr


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("bench store", "bench --what store"),
        ("bench store --root x", "bench --what store --root x"),
        ("bench --root x store", "bench --root x --what store"),
        ("bench --root store", "bench --root store"),
        ("bench inspect --tree x", "bench --what inspect --tree x"),
        ("inspect a -v b --for sm_120", "inspect --path a -v --path b --for sm_120"),
        ("bench", "bench"),
        ("bench 2", "bench 2"),
        ("verify store", "verify store"),
        ("verify 2", "verify --generation 2"),
        ("pin --help", "--help pin"),
        ("diff -h", "--help diff"),
        ("pin 2 --root x", "pin 2 --root x"),
    ],
)
def test_a_word_that_may_be_left_out(given: str, written: str) -> None:
    assert with_options(given.split()) == written.split()


@pytest.mark.parametrize("program", ["crossgrade", "invoke"])
def test_the_inspector_beside_its_peers(tmp_path: Path, venv: Path, program: str) -> None:
    (tmp_path / "tasks.py").write_text((CHECKOUT / "tasks.py").read_text())
    argv = [str(PROGRAM.with_name(program)), "bench", "inspect", "--tree", str(venv)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in ("plain pass", "crossgrade inspect --for sm_120", "ldd -r / crossgrade inspect"):
        assert words in done.stdout
    assert "cuobjdump" in done.stdout, "it was measured, or is said not to be"


def test_wrong_calls_of_the_inspector() -> None:
    wrong = crossgrade("bench", "inspect")
    assert (wrong.code, "needs --tree VENV" in wrong.stderr) == (5, True)


@pytest.mark.parametrize("command", sorted(make_collection().task_names))
def test_every_command_explains_itself(command: str) -> None:
    answer = crossgrade(command, "--help")
    assert answer.code == 0, answer.stderr
    assert f"[--core-opts] {command} " in answer.stdout


def test_nothing_outlives_an_interrupted_measure(tmp_path: Path, venv: Path) -> None:
    bench = tmp_path / "bench"
    argv = [str(PROGRAM), "bench", "store", "--tree", str(venv), "--root", str(bench)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "machine" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 99
    assert processes_below(bench) == []
    assert list(bench.iterdir()) == []
