"""Which extension modules and wheels fit which interpreter, and how an environment's interpreter is found."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.support.native import build, have_gcc

from crossgrade.gates.abi import judge_abi
from crossgrade.inspect.native import inspect_native
from crossgrade.inspect.python_abi import (
    Interpreter,
    extension_problem,
    find_interpreter,
    module_stem,
    wheel_problem,
)


def cpython(minor: int, suffix: str = "") -> Interpreter:
    soabi = f"cpython-3{minor}{suffix}-x86_64-linux-gnu"
    return Interpreter("/usr/bin/python3", (3, minor), soabi, "/usr", "/env/site-packages")


@pytest.mark.parametrize(
    ("name", "interpreter", "fits"),
    [
        ("a.cpython-312-x86_64-linux-gnu.so", cpython(12), True),
        ("a.cpython-311-x86_64-linux-gnu.so", cpython(12), False),
        ("a.cpython-312-aarch64-linux-gnu.so", cpython(12), False),
        ("a.cpython-312-x86_64-linux-musl.so", cpython(12), False),
        ("a.cpython-313t-x86_64-linux-gnu.so", cpython(13), False),
        ("a.cpython-313-x86_64-linux-gnu.so", cpython(13, "t"), False),
        ("a.cpython-313t-x86_64-linux-gnu.so", cpython(13, "t"), True),
        ("a.abi3.so", cpython(12), True),
        ("a.abi3.so", cpython(13, "t"), False),
        ("a.so", cpython(12), True),
        ("a.pypy310-pp73-x86_64-linux-gnu.so", cpython(10), False),
    ],
)
def test_suffixes(name: str, interpreter: Interpreter, fits: bool) -> None:
    assert (not extension_problem(name, interpreter)) == fits
    assert module_stem(name) == "a"


@pytest.mark.parametrize(
    ("tags", "interpreter", "fits"),
    [
        (["cp312-cp312-manylinux_2_28_x86_64"], cpython(12), True),
        (["cp310-cp310-manylinux_2_28_x86_64"], cpython(12), False),
        (["cp39-abi3-manylinux_2_28_x86_64"], cpython(12), True),
        (["cp313-abi3-linux_x86_64"], cpython(12), False),
        (["cp39-abi3-linux_x86_64"], cpython(13, "t"), False),
        (["cp313-cp313t-linux_x86_64"], cpython(13, "t"), True),
        (["py3-none-manylinux_2_28_x86_64"], cpython(12), True),
        (["py2.py3-none-any"], cpython(12), True),
        (["cp311-none-linux_x86_64"], cpython(12), False),
        (["py37-none-any"], cpython(12), True),
        (["py312-none-any"], cpython(12), True),
        (["py313-none-any"], cpython(12), False),
        (["cp310-cp310-linux_x86_64", "cp312-cp312-linux_x86_64"], cpython(12), True),
        ([], cpython(12), True),
    ],
)
def test_wheel_tags(tags: list[str], interpreter: Interpreter, fits: bool) -> None:
    assert (not wheel_problem(tags, interpreter)) == fits


def venv(place: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    return place


def test_the_interpreter_of_a_venv_is_found_without_running_it(tmp_path: Path) -> None:
    found = find_interpreter(venv(tmp_path / "venv"))
    assert found is not None
    assert found.version == sys.version_info[:2]
    assert found.soabi == sysconfig.get_config_var("SOABI")
    assert Path(found.site_packages).is_dir()
    assert Path(found.executable) == Path(sys.executable).resolve()
    assert find_interpreter(tmp_path) is None


@pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")
def test_extensions_for_another_python(tmp_path: Path) -> None:
    root = venv(tmp_path / "venv")
    found = find_interpreter(root)
    assert found is not None
    package = Path(found.site_packages) / "pkg"
    code = "void *PyInit_fast(void) { return 0; }"
    other = build(package / "fast.cpython-38-x86_64-linux-gnu.so", code)
    verdict = judge_abi(inspect_native(root))
    assert verdict.outcome == "failed"
    assert f"is built for CPython 3.8; this environment runs {found.name}" in verdict.reason
    build(package / f"fast.{found.soabi}.so", code)
    verdict = judge_abi(inspect_native(root))
    assert verdict.outcome == "passed"
    assert verdict.of_level("note")[0].subject.endswith(other.name)


@pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")
def test_a_plain_extension_is_judged_by_the_wheel_that_it_came_in(tmp_path: Path) -> None:
    root = venv(tmp_path / "venv")
    found = find_interpreter(root)
    assert found is not None
    site = Path(found.site_packages)
    build(site / "pkg" / "fast.so", "void *PyInit_fast(void) { return 0; }")
    info = site / "pkg-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("pkg/fast.so,sha256=abc,100\npkg-1.0.dist-info/RECORD,,\n")
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nTag: cp38-cp38-linux_x86_64\n")
    report = inspect_native(root)
    assert [str(file.dist) for file in report.files if file.path.endswith("fast.so")] == ["pkg 1.0"]
    assert "comes from a wheel for cp38-cp38-linux_x86_64" in judge_abi(report).reason
