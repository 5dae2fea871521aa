"""`crossgrade inspect`: of a venv, of files and of wheels, with the loader itself as the oracle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import Answer, crossgrade
from tests.support.native import build, have_gcc

from crossgrade.inspect.import_order import ImportOrder, Load
from crossgrade.inspect.native import inspect_native

pytestmark = pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")

NEEDS = "int shared(void); int call(void) { return shared(); }"


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`base` loads its library by ctypes for all; `user` imports it and states no search path; `alone` does not."""
    folder = tmp_path_factory.mktemp("inspect") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = site_of(folder)
    library = build(
        site / "base" / "lib" / "libbase.so.1", "int shared(void) { return 7; }", options=["-Wl,-soname,libbase.so.1"]
    )
    write(
        site / "base" / "__init__.py",
        "import ctypes, os\n"
        "_place = os.path.join(os.path.dirname(__file__), 'lib', 'libbase.so.1')\n"
        "ctypes.CDLL(_place, mode=ctypes.RTLD_GLOBAL)\n",
    )
    for package, code in (("user", "from user import loading\n"), ("alone", "def late():\n    import base\n")):
        build(site / package / "ops" / "code.so", NEEDS, libraries=[library])
        write(site / package / "__init__.py", code)
    write(site / "user" / "loading.py", "import base.deep as deep\n")
    write(site / "base" / "deep.py", "")
    return folder


def site_of(venv: Path) -> Path:
    return next(venv.glob("lib/python3*/site-packages"))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def dlopen_after(venv: Path, imported: str, path: Path) -> str:
    """What the loader says of a file in a process that has imported a package; "" when it loads."""
    code = f"import {imported}, ctypes, sys; ctypes.CDLL(sys.argv[1])"
    done = subprocess.run([venv / "bin" / "python", "-c", code, path], capture_output=True, text=True, check=False)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


def inspected(*arguments: str | Path) -> tuple[Answer, list[dict[str, Any]]]:
    answer = crossgrade("inspect", *arguments, "--json")
    assert answer.stdout, answer.stderr
    return answer, json.loads(answer.stdout)["inspected"]


def missing(found: dict[str, Any]) -> dict[str, list[str]]:
    return {
        Path(file["path"]).parts[-3]: [each["soname"] for each in file["missing_libraries"]]
        for file in found["files"]
        if file["path"].endswith("code.so")
    }


# ---- what a package imports first


def test_what_a_package_imports_first_is_loaded_already(venv: Path) -> None:
    site = site_of(venv)
    user, alone = site / "user" / "ops" / "code.so", site / "alone" / "ops" / "code.so"
    assert "libbase.so.1: cannot open shared object file" in dlopen_after(venv, "sys", user)
    assert dlopen_after(venv, "user", user) == ""
    assert "libbase.so.1: cannot open shared object file" in dlopen_after(venv, "alone", alone)
    answer, (found,) = inspected(venv)
    assert answer.code == 2
    assert missing(found) == {"user": [], "alone": ["libbase.so.1"]}
    after = {file["path"]: file["loads_after"] for file in found["files"] if file["loads_after"]}
    assert after == {str(user.relative_to(venv)): ["base"]}
    loading, cuda, dists, environment = found["verdicts"]
    assert (cuda["gate"], cuda["outcome"]) == ("cuda", "not run")
    assert (dists["gate"], dists["outcome"]) == ("consistency", "passed")
    assert (environment["gate"], environment["outcome"]) == ("environment", "passed")
    assert loading["outcome"] == "failed"
    notes = [each["message"] for each in loading["findings"] if each["level"] == "note"]
    assert "loads because its package imports base first; alone it lacks libraries" in notes


def test_symbols_are_judged_after_the_imports_too(venv: Path, tmp_path: Path) -> None:
    site = site_of(venv)
    library = build(
        tmp_path / "libbase.so.1", "int shared(void); int newer(void);", options=["-Wl,-soname,libbase.so.1"]
    )
    path = build(
        site / "user" / "newer" / "code.so", "int newer(void); int f(void) { return newer(); }", libraries=[library]
    )
    try:
        assert "undefined symbol: newer" in dlopen_after(venv, "user", path)
        report = inspect_native(venv)
        (file,) = (file for file in report.files if file.path.endswith("newer/code.so"))
        assert (file.missing_libraries, [symbol.name for symbol in file.missing_symbols]) == ((), ["newer"])
    finally:
        path.unlink()


def test_how_imports_are_followed(tmp_path: Path) -> None:
    for name, code in {
        "one/__init__.py": "from . import inner\nfrom .inner import thing\ntry:\n    import two\nfinally: pass\n",
        "one/inner.py": "from ..one import other\nimport four, missing\nclass A:\n    import five.deep\n",
        "one/other.py": "def f():\n    import six\nlambda: __import__('seven')\n",
        "two/__init__.py": "import three, one\n",
        "three/__init__.py": "import two\n",
        "four/__init__.py": "this is no Python\n",
        "five/__init__.py": "",
        "six/__init__.py": "",
    }.items():
        write(tmp_path / name, code)
    order = ImportOrder(tmp_path, [str(tmp_path / "two" / "_c.so"), str(tmp_path / "two" / "lib" / "x.so")])
    assert order.before(str(tmp_path / "one" / "deep" / "ops.so")) == ("three", "two", "four", "five")
    assert order.before(str(tmp_path / "top.so")) == ()
    assert order.before("/elsewhere/lib.so") == ()
    assert order.loads("two") == (Load(str(tmp_path / "two" / "_c.so"), False),)
    assert order.loads("five") == ()


@pytest.mark.parametrize(
    "how",
    [
        'load("cuda_nvrtc", "libnvrtc.so.*[0-9]")',
        '[load(*each) for each in [("cuda_nvrtc", "libnvrtc.so.*[0-9]")]]',
        '[load(*each) for each in {"cuda_nvrtc": "libnvrtc.so.*[0-9]"}.items()]',
    ],
)
def test_libraries_that_a_package_looks_for_by_a_pattern(tmp_path: Path, how: str) -> None:
    """As PyTorch loads libnvrtc, and would load others where that fails."""
    code = """
def load(folder, name): ...
def start():
    try:
        %s
    except OSError:
        load("cublas", "libcublas.so.*[0-9]")
start()
"""
    write(tmp_path / "torch" / "__init__.py", code % how)
    write(tmp_path / "user" / "__init__.py", "import torch")
    names = (
        "nvidia/cu13/lib/libnvrtc.so.13",
        "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        "nvidia/cublas/lib/libcublas.so.12",
    )
    files = [str(tmp_path / name) for name in names]
    assert ImportOrder(tmp_path, files).loads("torch") == (Load(files[1], False),)
    assert ImportOrder(tmp_path, files[:1]).loads("torch") == (Load(files[0], False),)
    assert ImportOrder(tmp_path, files[2:]).loads("torch") == ()


# ---- files, wheels, options


def test_one_file_of_a_venv(venv: Path) -> None:
    site = site_of(venv)
    answer, (found,) = inspected(site / "user" / "ops" / "code.so")
    assert answer.code == 0
    assert [file["path"] for file in found["files"]] == [str((site / "user" / "ops" / "code.so").relative_to(venv))]
    answer, (found,) = inspected(site / "alone" / "ops" / "code.so")
    assert answer.code == 2
    assert "needs libbase.so.1" in found["verdicts"][0]["reason"]


def test_a_file_against_a_venv(venv: Path, tmp_path: Path) -> None:
    path = build(tmp_path / "plugin.so", NEEDS, libraries=[site_of(venv) / "base" / "lib" / "libbase.so.1"])
    answer, (found,) = inspected(path, "--against", venv)
    assert answer.code == 2
    assert found["verdicts"][0]["findings"][0]["subject"] == str(path)
    preloaded, _ = inspected(path, "--against", venv, "--preload", "base/lib/*.so.*")
    assert preloaded.code == 0
    ignored, _ = inspected(path, "--against", venv, "--ignore", "*/plugin.so")
    assert ignored.code == 0


def wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    info = f"{name}-{version}.dist-info"
    record = "".join(f"{path},,\n" for path in files)
    parts = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
        f"{info}/RECORD": record.encode(),
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for each, data in parts.items():
            archive.writestr(each, data)
    return path


def test_wheels_are_judged_as_what_they_would_become(venv: Path, tmp_path: Path) -> None:
    code = (site_of(venv) / "alone" / "ops" / "code.so").read_bytes()
    fits = wheel(tmp_path, "fits", "1.0", {"fits/__init__.py": b"import base\n", "fits/code.so": code})
    answer, (found,) = inspected(fits, "--against", venv)
    assert answer.code == 0, found
    assert [(file["path"].rpartition("/")[2], file["dist"]) for file in found["files"]] == [("code.so", "fits 1.0")]
    alone, _ = inspected(fits)
    assert alone.code == 2, "without the venv there is no libbase"
    base = wheel(tmp_path, "base", "2.0", {
        "base/__init__.py": (site_of(venv) / "base" / "__init__.py").read_bytes(),
        "base/lib/libbase.so.1": (site_of(venv) / "base" / "lib" / "libbase.so.1").read_bytes(),
    })  # fmt: skip
    together, _ = inspected(fits, base)
    assert together.code == 0
    assert not list(Path(os.environ.get("TMPDIR", "/tmp")).glob("crossgrade-inspect-*"))  # noqa: S108


def test_a_wheel_takes_the_place_of_what_is_installed(tmp_path: Path) -> None:
    folder = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = site_of(folder)
    library = build(
        site / "old" / "lib" / "libold.so.1", "int shared(void) { return 1; }", options=["-Wl,-soname,libold.so.1"]
    )
    build(site / "user" / "code.so", NEEDS, libraries=[library], options=["-Wl,-rpath,$ORIGIN/../old/lib"])
    write(site / "old-1.0.dist-info" / "RECORD", "old/lib/libold.so.1,,\nold-1.0.dist-info/RECORD,,\n")
    write(site / "old-1.0.dist-info" / "METADATA", "Name: old\nVersion: 1.0\n")
    user = site / "user" / "code.so"
    assert inspected(folder)[0].code == 0
    newer = wheel(tmp_path, "old", "2.0", {"old/__init__.py": b""})
    rebuilt = wheel(tmp_path, "user", "2.0", {"user/code.so": user.read_bytes()})
    kept, _ = inspected(rebuilt, "--against", folder)
    assert kept.code == 0
    answer, (found,) = inspected(rebuilt, newer, "--against", folder)
    assert answer.code == 2
    assert "needs libold.so.1" in found["verdicts"][0]["reason"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("../out.so", "leads out of it"), ("/etc/out.so", "leads out of it"), (None, "is no wheel")],
)
def test_wheels_that_are_none(tmp_path: Path, name: str | None, words: str) -> None:
    path = tmp_path / "bad-1.0-py3-none-any.whl"
    path.write_bytes(b"PK no")
    if name:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, b"\x7fELF")
    answer = crossgrade("inspect", path)
    assert (answer.code, words in answer.stderr) == (1, True), answer.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 5, "inspect needs a venv"),
        (["/nowhere"], 1, "there is no /nowhere"),
        (["/usr/lib", "--for", "fast"], 5, "is not a compute capability"),
        (["/usr/lib", "--against", "/usr"], 1, "is not a venv"),
        (["/usr/lib", "--fro", "sm_120"], 5, "--fro"),
    ],
)
def test_wrong_calls(arguments: list[str], code: int, words: str) -> None:
    answer = crossgrade("inspect", *arguments)
    assert (answer.code, words in answer.stderr) == (code, True), answer.stderr


def test_for_people(venv: Path, tmp_path: Path) -> None:
    answer = crossgrade("inspect", venv, "--for", "sm_120")
    assert answer.code == 2
    assert "loading: failed: 1 failure" in answer.stdout
    assert "failure: alone/ops/code.so: needs libbase.so.1, which is nowhere" in answer.stdout
    assert "GPU: not run: none of 4 native files holds device code" in answer.stdout
    text = write(tmp_path / "text.so", "text")
    broken = crossgrade("inspect", text)
    assert broken.code == 2
    assert "text.so: cannot be read: invalid ELF header" in broken.stdout
