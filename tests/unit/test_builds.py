"""What native modules were compiled against: real shared objects, with the loader's own answer beside the verdict."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.tags import parse_tag, sys_tags
from tests.support.native import build, dlopen, have_gcc

from crossgrade.gates.consistency import judge_consistency
from crossgrade.gates.verdict import Verdict
from crossgrade.inspect.builds import Build, made_for, read_builds
from crossgrade.inspect.consistency import read_consistency
from crossgrade.inspect.dists import site_packages
from crossgrade.inspect.elf import FileSource, parse_elf
from crossgrade.inspect.elf_lookup import defines
from crossgrade.inspect.elf_symbols import list_symbols
from crossgrade.inspect.installed_files import read_records
from crossgrade.inspect.limited_api import promised
from crossgrade.inspect.numpy_api import NumpyApi, numpy_api_in
from crossgrade.inspect.python_abi import find_interpreter
from crossgrade.inspect.version_pairs import mismatched
from crossgrade.inspect.wheel_fit import unfit_wheels

pytestmark = pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")

OLD, NEW = "numpy.core._multiarray_umath", "numpy._core._multiarray_umath"
TARGET = "module was compiled against NumPy C-API version 0x%x (NumPy {}) but the running NumPy has C-API version 0x%x"
THIS = f"cp{sys.version_info[0]}{sys.version_info[1]}"


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    return tmp_path / "venv"


def add(venv: Path, name: str, version: str, *files: Path, tags: str = "py3-none-any", headers: str = "") -> None:
    """A dist that lists these files, which are in site-packages already."""
    site = site_packages(venv)
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{headers}\n")
    (folder / "WHEEL").write_text("Wheel-Version: 1.0\n" + "".join(f"Tag: {tag}\n" for tag in tags.split()))
    (folder / "RECORD").write_text("".join(f"{file.relative_to(site)},,\n" for file in files))


def module(venv: Path, path: str, *texts: str, code: str = "") -> Path:
    """An extension module that holds these texts in its read-only data."""
    listed = ", ".join(f'"{text}"' for text in texts) or "0"
    return build(site_packages(venv) / path, f"const char *texts[] = {{ {listed} }};\n{code}")


def judge(venv: Path, *ignore: str) -> Verdict:
    return judge_consistency(read_consistency(venv), ignore=ignore)


def builds(venv: Path) -> list[Build]:
    interpreter = find_interpreter(venv)
    assert interpreter is not None
    return list(read_builds(venv, read_records(venv), interpreter))


# ---- numpy


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ([OLD], NumpyApi(1, None)),
        ([OLD, TARGET.format("1.23")], NumpyApi(1, (1, 23))),
        ([NEW, OLD, TARGET.format("2.0")], NumpyApi(2, (2, 0))),
        (["numpy.core._multiarray_umath failed to import"], None),
        (["mine._multiarray_umath"], None),
        (["numpy.core.multiarray failed to import"], None),
    ],
)
def test_what_the_headers_of_numpy_leave(texts: list[str], found: NumpyApi | None) -> None:
    assert numpy_api_in(b"".join(text.encode() + b"\0" for text in ["first", *texts])) == found


def test_a_module_for_numpy_1_under_numpy_2(venv: Path) -> None:
    extension = module(venv, "frames/lib.cpython-3-none.so", OLD)
    plain = module(venv, "frames/ops.so", OLD)
    library = module(venv, "frames/libother.so", OLD)
    add(venv, "frames", "1.0", plain, library, extension)
    add(venv, "numpy", "2.2.6")
    verdict = judge(venv)
    assert verdict.reason == (
        "frames 1.0 1 module (frames/ops.so) was compiled against numpy 1, and numpy 2.2.6 is installed: it cannot be "
        "imported. Install a release of frames that was built for numpy 2, or numpy<2"
    ), "and the module for another Python does not count"
    (warning,) = verdict.of_level("warning")
    assert warning.message.startswith("1 native file (frames/libother.so) was compiled against numpy 1")
    assert judge(venv, "fra*").passed


@pytest.mark.parametrize(
    ("texts", "numpy", "fails"),
    [
        ([OLD], "1.26.4", False),
        ([NEW, OLD, TARGET.format("1.23")], "2.2.6", False),
        ([NEW, OLD, TARGET.format("1.23")], "1.26.4", False),
        ([NEW, OLD, TARGET.format("2.0")], "1.26.4", True),
        ([NEW, OLD, TARGET.format("2.3")], "2.2.6", True),
        ([NEW, OLD, TARGET.format("2.3")], "2.10.0", False),
        ([OLD, TARGET.format("1.25")], "1.23.5", True),
    ],
)
def test_which_numpy_a_build_works_with(venv: Path, texts: list[str], numpy: str, fails: bool) -> None:
    add(venv, "frames", "1.0", module(venv, "frames/ops.so", *texts))
    add(venv, "numpy", numpy)
    assert [finding.level for finding in judge(venv).findings] == ["failure"] * fails


def test_without_numpy_nothing_is_said_of_it(venv: Path) -> None:
    add(venv, "frames", "1.0", module(venv, "frames/ops.so", OLD))
    assert judge(venv).findings == ()


# ---- torch


def torch(venv: Path, version: str, code: str) -> list[Path]:
    """A torch whose libc10 defines what the code says."""
    folder = site_packages(venv) / "torch" / "lib"
    library = build(folder / "libc10.so", code, options=["-Wl,-soname,libc10.so"])
    add(venv, "torch", version, library)
    return [library]


SYMBOL = "_ZNK3c106SymInt22maybe_as_int_slow_pathEv"  # which the table of knowledge has since torch 2.9.1
CALL = "void {0}(void); void call_{1}(void) {{ {0}(); }}"


def test_siblings_of_a_module_that_lacks_symbols_of_torch(venv: Path) -> None:
    libraries = torch(venv, "2.8.0", "void _ZN3c105checkEv(void) {}")
    site = site_packages(venv)
    needs = build(site / "kernels/needs.abi3.so", CALL.format(SYMBOL, 1), libraries=libraries)
    loads = build(site / "kernels/loads.abi3.so", CALL.format("_ZN3c105checkEv", 2), libraries=libraries)
    build(site / "other/other.so", CALL.format("_ZN3c105checkEv", 3), libraries=libraries)
    add(venv, "kernels", "0.3", needs, loads, tags="cp39-abi3-linux_x86_64")
    add(venv, "other", "1", site / "other/other.so")
    folder = [libraries[0].parent]
    assert f"undefined symbol: {SYMBOL}" in dlopen(needs, library_path=folder).message
    assert dlopen(loads, library_path=folder).loads
    (failure,) = judge(venv).findings
    assert failure.message == (
        "was compiled against torch 2.9.1 or newer: 1 module (kernels/needs.abi3.so) needs "
        "c10::SymInt::maybe_as_int_slow_path() const, which torch 2.8.0 does not have; 1 module "
        "(kernels/loads.abi3.so) loads all the same, and may then abort. Install the build of kernels for torch 2.8.0, "
        "or the torch that it was built for"
    )
    assert failure.evidence["may_abort"] == ["kernels/loads.abi3.so"]


@pytest.mark.parametrize(
    ("symbol", "said"),
    [
        ("_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib", "torch 2.9.1 or older"),
        ("torch_new_stable_ivalue", "torch 2.14.1 or newer"),
        ("_ZN3c107unknownEv", "another torch"),
    ],
)
def test_older_and_unknown_builds(venv: Path, symbol: str, said: str) -> None:
    libraries = torch(venv, "2.11.0", "void _ZN3c105checkEv(void) {}")
    add(venv, "k", "1", build(site_packages(venv) / "k/k.so", CALL.format(symbol, 1), libraries=libraries))
    (finding,) = judge(venv).findings
    assert finding.level == "warning"
    assert finding.message.startswith(f"was compiled against {said}: 1 module (k/k.so) needs ")
    assert "; it cannot be loaded. " in finding.message


def test_what_a_sibling_or_nobody_in_fact_needs_is_not_lacking(venv: Path) -> None:
    libraries = torch(venv, "2.8.0", "int _ZN3c105checkEv(void) { return 1; }")
    site = site_packages(venv)
    own = build(site / "k/libown.so", "void _ZN3c103ownEv(void) {}", libraries=libraries)
    user = build(site / "k/user.so", CALL.format("_ZN3c103ownEv", 1), libraries=[*libraries, own])
    variant = build(site / "k/libaddon_torch27-cuda.so", CALL.format(SYMBOL, 2), libraries=libraries)
    add(venv, "k", "1", own, user, variant)
    assert [item.path for item in builds(venv) if item.lacks] == ["k/libaddon_torch27-cuda.so"]
    assert judge(venv).findings == (), "and that one is for another torch by its name"
    assert (made_for("torch_x/libaddon_torch29-cuda.so"), made_for("torch_210/x.so")) == ("2.9", "")


def test_a_torch_that_cannot_be_read_says_nothing_of_others(venv: Path) -> None:
    libraries = torch(venv, "2.8.0", "int _ZN3c105checkEv(void) { return 1; }")
    add(venv, "k", "1", build(site_packages(venv) / "k/k.so", CALL.format(SYMBOL, 1), libraries=libraries))
    assert judge(venv).findings
    libraries[0].write_bytes(libraries[0].read_bytes()[:2000])
    assert judge(venv).findings == ()


@pytest.mark.parametrize("name", ["libc.so.6", "libstdc++.so.6"])
def test_looking_names_up_by_the_hash_table(name: str) -> None:
    path = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    with FileSource(os.path.realpath(path)) as source:
        elf = parse_elf(source)
        symbols = list_symbols(source, elf)
        there = {os.fsencode(symbol.name) for symbol in symbols if symbol.defined}
        absent = {name + b"_" for name in there} | {os.fsencode(s.name) for s in symbols if not s.defined} - there
        assert len(there) > 1000
        assert defines(source, elf, there | absent) == there | (absent & there)


# ---- Python's limited API


@pytest.mark.parametrize(
    ("tags", "oldest"),
    [
        (["cp39-abi3-linux_x86_64"], (3, 9)),
        (["cp311-abi3-any", "cp38-abi3-any"], (3, 8)),
        (["cp39.cp310-abi3-any"], (3, 9)),
        (["cp311-cp311-any", "py3-none-any"], None),
        ([], None),
    ],
)
def test_what_a_wheel_promises(tags: list[str], oldest: tuple[int, int] | None) -> None:
    assert promised(tags) == oldest


def test_a_module_that_uses_more_than_it_promises(venv: Path) -> None:
    calls = "".join(
        f"void {name}(void); " for name in ("PyList_New", "PyObject_GetBuffer", "PyUnicode_AsUTF8", "Pyfoo")
    )
    code = calls + "void f(void) { PyList_New(); PyObject_GetBuffer(); PyUnicode_AsUTF8(); Pyfoo(); }"
    path = build(site_packages(venv) / "k/k.abi3.so", code)
    add(venv, "k", "1", path, tags=f"cp39-abi3-linux_{platform.machine()}")
    (warning,) = judge(venv).findings
    assert warning.level == "warning"
    assert warning.message == (
        "k/k.abi3.so is for the limited API of CPython 3.9 (abi3), and uses PyObject_GetBuffer (in it since 3.11), "
        "PyUnicode_AsUTF8 (never in it): another release of Python may break it. Install a build of k for this "
        "Python where there is one"
    )


# ---- wheels and pairs


@pytest.mark.parametrize(
    "tag",
    [
        "py3-none-any",
        "py37-none-any",
        "py2.py3-none-any",
        "py2-none-any",
        "py399-none-any",
        f"{THIS}-{THIS}-manylinux2014_{platform.machine()}",
        f"cp39-abi3-manylinux_2_17_{platform.machine()}.manylinux2014_{platform.machine()}",
        f"cp399-abi3-linux_{platform.machine()}",
        "cp38-cp38-manylinux2014_x86_64",
        f"{THIS}-{THIS}-musllinux_1_2_x86_64",
        f"{THIS}-{THIS}-manylinux2014_s390x",
        f"{THIS}-{THIS}-win_amd64",
        "py3-none-macosx_11_0_arm64",
    ],
)
def test_wheel_tags_are_judged_as_installers_do(venv: Path, tag: str) -> None:
    add(venv, "k", "1", tags=tag)
    interpreter = find_interpreter(venv)
    assert interpreter is not None
    found = unfit_wheels([each.dist for each in read_records(venv)], interpreter)
    assert bool(found) == parse_tag(tag).isdisjoint(sys_tags())
    assert [finding.level for finding in judge(venv).findings] == ["failure"] * len(found)


@pytest.mark.parametrize(
    ("dist", "version", "python", "level"),
    [
        ("flashinfer-cubin", "0.6.13", "0.6.3", "failure"),
        ("flashinfer-cubin", "0.6.13", "0.7.1", "failure"),
        ("flashinfer-cubin", "0.6.13", "0.7.2", "warning"),
        ("flashinfer-cubin", "0.6.3", "0.6.3", ""),
        ("flashinfer-jit-cache", "0.6.3+cu130", "0.6.3", ""),
        ("flashinfer-jit-cache", "0.6.4+cu130", "0.6.3", "failure"),
    ],
)
def test_versions_that_code_compares(venv: Path, dist: str, version: str, python: str, level: str) -> None:
    add(venv, dist, version)
    add(venv, "flashinfer-python", python)
    findings = judge(venv).findings
    assert [finding.level for finding in findings] == ([level] if level else [])
    assert all(f"Install {dist} {python}" in finding.message for finding in findings)
    assert mismatched(()) == ()


# ---- what is damaged


@pytest.mark.parametrize(
    "record", [b"\x00\x7fELF\xff\xfe,,,\n", b"a.py\n", b'"a.py,,\n' + b"x,,\n" * 60_000, b"a\x00b.py,,\n"]
)
def test_a_damaged_record_is_a_finding(venv: Path, record: bytes) -> None:
    add(venv, "k", "1")
    (site_packages(venv) / "k-1.dist-info/RECORD").write_bytes(record)
    (failure,) = judge(venv).findings
    assert (failure.level, failure.subject) == ("failure", "k 1")
    assert failure.message.startswith("its RECORD is damaged (")


def test_binary_metadata_and_wheel(venv: Path) -> None:
    add(venv, "k", "1")
    for name in ("METADATA", "WHEEL"):
        (site_packages(venv) / "k-1.dist-info" / name).write_bytes(bytes(range(256)) * 40)
    (failure,) = judge(venv).findings
    assert failure.message == "has requirements that are not known: its METADATA is damaged (it states no name)"


def test_no_record_is_a_note(venv: Path) -> None:
    add(venv, "k", "1")
    (site_packages(venv) / "k-1.dist-info/RECORD").unlink()
    assert [(finding.level, finding.message[:21]) for finding in judge(venv).findings] == [
        ("note", "its RECORD is missing")
    ]


def test_files_that_are_gone(venv: Path) -> None:
    site = site_packages(venv)
    add(
        venv, "k", "1", *(site / name for name in ("k/a.py", "k/lib/libk.so.1", "k/tests/test_k.py", "k/k.pyi", "k.py"))
    )
    (site / "k.py").touch()
    failure, warning = judge(venv).findings
    assert failure.message == "2 files of its RECORD are missing (k/a.py, k/lib/libk.so.1). Install it again"
    assert warning.message == "2 files of its RECORD are missing (k/tests/test_k.py, k/k.pyi). Install it again"


def test_requires_python(venv: Path) -> None:
    add(venv, "new", "1", headers="Requires-Python: >=3.99\n")
    add(venv, "old", "1", headers="Requires-Python: >=3.6, !=3.7.*\n")
    add(venv, "odd", "1", headers="Requires-Python: three\n")
    found = {finding.subject: (finding.level, finding.message) for finding in judge(venv).findings}
    assert found["new 1"] == ("failure", f"needs Python >=3.99, and this environment runs {platform.python_version()}")
    assert found["odd 1"][0] == "warning"
    assert "old 1" not in found
