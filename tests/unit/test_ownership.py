"""Files that two dists list: in venvs that uv installed, and in folders with RECORDs that people have."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.support.tiny_wheels import recorded_hash, tiny_venv, tiny_wheel, uv_pip

from crossgrade.inspect.dists import installed_dists, site_packages
from crossgrade.inspect.installed_files import read_records
from crossgrade.inspect.ownership import Conflict, by_dists, conflicts

LIBRARY = "nvidia/nccl/lib/libnccl.so.2"


def nccl(folder: Path, cuda: str, version: str) -> Path:
    files = {LIBRARY: f"nccl for {cuda}".encode(), "nvidia/__init__.py": b"", f"nvidia/nccl/{cuda}.h": b"/* */"}
    return tiny_wheel(folder, f"nvidia-nccl-{cuda}", version, files)


def bare_venv(place: Path) -> Path:
    (place / "lib/python3.11/site-packages").mkdir(parents=True)
    return place


def add(venv: Path, name: str, record: str | None) -> None:
    """A dist of version 1 with this RECORD."""
    folder = site_packages(venv) / f"{name}-1.dist-info"
    folder.mkdir()
    if record is not None:
        (folder / "RECORD").write_text(record)


def put(venv: Path, path: str, content: bytes) -> None:
    file = site_packages(venv) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def only(venv: Path) -> Conflict:
    (found,) = conflicts(venv)
    return found


def current(conflict: Conflict) -> list[str]:
    return [dist.name for dist in conflict.current]


# What installers do


def test_the_one_installed_last_wins(tmp_path: Path) -> None:
    wheels = nccl(tmp_path, "cu13", "2.28.3"), nccl(tmp_path, "cu12", "2.27.5")
    venv = tiny_venv(tmp_path / "venv", *wheels)
    shared, library = conflicts(venv)
    assert (shared.path, shared.agree) == ("nvidia/__init__.py", True)
    assert (library.path, library.agree, current(library)) == (LIBRARY, False, ["nvidia-nccl-cu12"])
    assert [str(dist) for dist in library.dists] == ["nvidia-nccl-cu12 2.27.5", "nvidia-nccl-cu13 2.28.3"]
    assert (site_packages(venv) / LIBRARY).read_bytes() == b"nccl for cu12"

    uv_pip(venv, "uninstall", "nvidia-nccl-cu12")
    assert not (site_packages(venv) / LIBRARY).exists(), "uv left the file to its other owner: the remedy can be milder"
    assert conflicts(venv) == ()
    uv_pip(venv, "install", "--no-deps", "--reinstall", str(wheels[0]))
    assert (site_packages(venv) / LIBRARY).read_bytes() == b"nccl for cu13"
    assert conflicts(venv) == ()


def test_a_venv_without_conflicts(tmp_path: Path) -> None:
    venv = tiny_venv(tmp_path / "venv", tiny_wheel(tmp_path, "a", "1"), tiny_wheel(tmp_path, "b", "1"))
    assert len(installed_dists(venv)) == 2
    assert conflicts(venv) == ()


def test_two_dists_of_one_name_as_an_interrupted_installer_leaves_them(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path)
    for version, content in (("2.9.1", b"old"), ("2.11.0", b"new")):
        folder = site_packages(venv) / f"torch-{version}.dist-info"
        folder.mkdir()
        (folder / "RECORD").write_text(f"torch/version.py,{recorded_hash(content)},3\n")
    put(venv, "torch/version.py", b"new")
    assert [str(dist) for dist in only(venv).current] == ["torch 2.11.0"]


# Whose bytes


@pytest.mark.parametrize(
    ("content", "owners", "problem"),
    [(b"of a", ["a"], ""), (b"of b", ["b"], ""), (b"patched", [], ""), (None, [], "missing")],
)
def test_whose_bytes_are_there(tmp_path: Path, content: bytes | None, owners: list[str], problem: str) -> None:
    venv = bare_venv(tmp_path)
    for name in ("a", "b"):
        add(venv, name, f"x/lib.so,{recorded_hash(f'of {name}'.encode())},4\n")
    if content is not None:
        put(venv, "x/lib.so", content)
    found = only(venv)
    assert (found.agree, current(found), found.problem) == (False, owners, problem)


def test_a_directory_or_a_pipe_in_the_place_of_the_file(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path)
    for name in ("a", "b"):
        line = recorded_hash(name.encode())
        add(venv, name, f"x/folder,{line},3\nx/pipe,{line},3\n")
    (site_packages(venv) / "x/folder").mkdir(parents=True)
    os.mkfifo(site_packages(venv) / "x/pipe")
    for found in conflicts(venv):
        assert (found.agree, found.current) == (False, ())
        assert found.problem == "unreadable (no regular file)"


def test_files_that_agree_are_not_read(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path)
    for name in ("a", "b", "c"):
        add(venv, name, f"x.py,{recorded_hash(b'')},0\n")
    found = only(venv)  # there is no such file at all
    assert (found.agree, found.problem, len(found.dists)) == (True, "", 3)


@pytest.mark.parametrize(
    ("content", "agree", "owners"), [(b"same", True, ["a", "b"]), (b"else", False, []), (None, None, [])]
)
def test_hashes_of_two_algorithms(tmp_path: Path, content: bytes | None, agree: bool | None, owners: list[str]) -> None:
    venv = bare_venv(tmp_path)
    add(venv, "a", f"x.py,{recorded_hash(b'same')},4\n")
    add(venv, "b", f"x.py,{recorded_hash(b'same', 'sha512')},4\n")
    if content is not None:
        put(venv, "x.py", content)
    found = only(venv)
    assert (found.agree, current(found)) == (agree, owners)


@pytest.mark.parametrize("digest", ["", "sha256=", "blake9=abc", "shake_128=abc"])
def test_a_line_without_a_hash_that_can_be_compared(tmp_path: Path, digest: str) -> None:
    venv = bare_venv(tmp_path)
    add(venv, "a", f"x.py,{recorded_hash(b'x')},1\n")
    add(venv, "b", f"x.py,{digest},\n")
    put(venv, "x.py", b"x")
    assert only(venv).agree is None


def test_padded_hashes_are_the_same(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path)
    add(venv, "a", f"x.py,{recorded_hash(b'x')}=,1\n")
    add(venv, "b", f"x.py,{recorded_hash(b'x')},1\n")
    assert only(venv).agree is True


# Which lines count


@pytest.mark.parametrize(
    ("one", "other", "path"),
    [
        ("../../../bin/x", "y/../../../../bin/x", "../../../bin/x"),
        ("y//x.py", "./y/x.py", "y/x.py"),
        ("../site-packages/x.py", "x.py", "x.py"),
        ("{site}/x.py", "x.py", "x.py"),
        ('"a, b ""c"".py"', '"a, b ""c"".py"', 'a, b "c".py'),
    ],
)
def test_spellings_of_one_path(tmp_path: Path, one: str, other: str, path: str) -> None:
    venv = bare_venv(tmp_path)
    site = str(site_packages(venv))
    add(venv, "a", f"{one.format(site=site)},{recorded_hash(b'a')},1\n")
    add(venv, "b", f"{other},{recorded_hash(b'b')},1\n")
    put(venv, path, b"b")
    found = only(venv)
    assert (found.path, current(found)) == (path, ["b"])


def test_lines_that_never_conflict(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path)
    for name in ("a", "b"):
        paths = ("x.pyc", "x/__pycache__/y.cpython-311.pyc", "__pycache__/z", "c-1.dist-info/METADATA", "x/")
        add(venv, name, "".join(f"{path},{recorded_hash(name.encode())},1\n" for path in paths))
    add(venv, "c", "twice.py,,\n./twice.py,,\n\n")
    assert conflicts(venv) == ()


def test_dist_info_that_a_dist_brings_along_for_itself_counts(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path)
    for name in ("a", "b"):
        add(venv, name, f"x/_vendor/y-1.dist-info/METADATA,{recorded_hash(b'')},0\n")
    assert only(venv).agree is True


def test_a_dist_without_record_lists_nothing(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path)
    add(venv, "a", None)
    add(venv, "b", "x.py,,\n")
    assert conflicts(venv) == ()


@pytest.mark.parametrize("record", ["x.py,sha256=a\n", ",,\n", '"x.py,,\n' + "y.py,,\n" * 30_000])
def test_a_damaged_record(tmp_path: Path, record: str) -> None:
    venv = bare_venv(tmp_path)
    add(venv, "a", record)
    add(venv, "b", "x.py,,\n")
    assert conflicts(venv) == ()
    assert [(each.dist.name, each.problem[:12]) for each in read_records(venv)] == [("a", "is damaged ("), ("b", "")]


def test_by_dists(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path)
    add(venv, "c", "1,,\n2,,\n3,,\n")
    add(venv, "b", "1,,\n2,,\n")
    add(venv, "a", "3,,\n")
    groups = by_dists(conflicts(venv))
    assert [([dist.name for dist in dists], [file.path for file in files]) for dists, files in groups.items()] == [
        (["a", "c"], ["3"]),
        (["b", "c"], ["1", "2"]),
    ]


def test_60_000_lines_take_a_fraction_of_a_second(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path)
    digest = recorded_hash(b"")
    for number in range(170):
        lines = [f"package_{number}/part/module_{line}.py,{digest},0\n" for line in range(352)]
        add(venv, f"package_{number}", "".join([*lines, f"nvidia/__init__.py,{digest},0\n"]))
    best = min(_seconds(venv) for _ in range(3))
    assert best < 0.5, f"{best:.3f} s"


def _seconds(venv: Path) -> float:
    started = time.perf_counter()
    assert len(only(venv).claims) == 170
    return time.perf_counter() - started
