"""What has not changed is not read again, and whatever may have changed is."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from tests.support.commands import crossgrade
from tests.support.gate_host import make_venv
from tests.support.native import build, have_gcc

pytestmark = pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")

UNCHANGED = "nothing has changed since"


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = tmp_path / "venv"
    make_venv(place)
    build(site_of(place) / "kernels" / "ops.abi3.so", "void *PyInit_ops(void) { return 0; }")
    (site_of(place) / "kernels" / "__init__.py").write_text("from . import ops\n")
    time.sleep(0.2)  # older than the next look at it
    return place


def site_of(venv: Path) -> Path:
    return next(venv.glob("lib/python3*/site-packages"))


def said(venv: Path, *options: str) -> str:
    answer = crossgrade("inspect", str(venv), *options)
    assert answer.code in (0, 2), answer.stderr
    return answer.stdout


def test_the_second_time_says_the_same_without_reading(venv: Path, tmp_path: Path) -> None:
    first = said(venv)
    second = said(venv)
    assert UNCHANGED not in first
    assert second.startswith(first)
    assert UNCHANGED in second
    assert said(venv, "--json") == said(venv, "--json")
    assert UNCHANGED not in said(venv, "--no-cache")
    kept = list((tmp_path / "cache" / "crossgrade" / "inspections").iterdir())
    assert kept
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}


def replaced(venv: Path) -> None:
    build(site_of(venv) / "kernels" / "ops.abi3.so", "int nothing;")


def same_size_and_time(venv: Path) -> None:
    path = site_of(venv) / "kernels" / "__init__.py"
    before = path.stat()
    path.write_text("from . import opz\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def added(venv: Path) -> None:
    build(site_of(venv) / "kernels" / "more.abi3.so", "void *PyInit_more(void) { return 0; }")


def removed(venv: Path) -> None:
    (site_of(venv) / "kernels" / "ops.abi3.so").unlink()


@pytest.mark.parametrize("change", [replaced, same_size_and_time, added, removed])
def test_a_change_is_seen(venv: Path, change: object) -> None:
    said(venv)
    assert UNCHANGED in said(venv)
    change(venv)  # type: ignore[operator]
    assert UNCHANGED not in said(venv)


def test_what_else_decides_is_asked_as_well(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said(venv)
    assert UNCHANGED not in said(venv, "--for", "sm_120")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(venv))
    assert UNCHANGED not in said(venv)


def test_what_has_just_been_written_is_not_trusted(venv: Path) -> None:
    """Its times would be those of a second change in the same moment."""
    later = time.time() + 3600
    os.utime(site_of(venv) / "kernels" / "__init__.py", (later, later))
    assert UNCHANGED not in said(venv)
    (site_of(venv) / "kernels" / "__init__.py").write_text("from . import ops, more\n")
    said(venv)
    time.sleep(0.2)
    said(venv)
    assert UNCHANGED in said(venv)


def test_a_damaged_answer_is_no_answer(venv: Path, tmp_path: Path) -> None:
    first = said(venv)
    for path in (tmp_path / "cache" / "crossgrade" / "inspections").glob("*.head"):
        path.write_bytes(path.read_bytes()[:40])
    assert said(venv).splitlines()[1:] == first.splitlines()[1:]
