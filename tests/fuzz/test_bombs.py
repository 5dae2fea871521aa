"""Small inputs that ask for much time, memory or disk: the command stays within limits that the kernel enforces."""

from __future__ import annotations

import json
import os
import struct
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.commands import crossgrade
from tests.support.crafted import library, limited
from tests.support.native import build, have_gcc

from crossgrade.errors import CrossgradeError
from crossgrade.inspect.dists import installed_dists
from crossgrade.inspect.import_order import ImportOrder
from crossgrade.inspect.mangled import demangled, most_alike, qualified_name
from crossgrade.inspect.native import inspect_native
from crossgrade.inspect.ownership import conflicts
from crossgrade.inspect.python_abi import Interpreter, find_interpreter, wheel_problem
from crossgrade.inspect.requirements import unmet
from crossgrade.inspect.wheels import UnreadableWheelError, laid_out

pytestmark = pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")


def with_sections(count: int, name: bytes, place: int, size: int) -> bytes:
    """A library with many sections of one name over the same bytes of the file."""
    data = library(["libc.so.6"])
    names = b"\0" + name + b"\0"
    headers = len(data) + len(names)
    one = struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, place, size, 0, 0, 1, 0)
    last = struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, len(data), len(names), 0, 0, 1, 0)
    data = data[:40] + struct.pack("<Q", headers) + data[48:58] + struct.pack("<HHH", 64, count + 1, count) + data[64:]
    return data + names + one * count + last


def test_sections_that_lie_over_one_another(tmp_path: Path) -> None:
    content = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0) * 4000
    place = len(library(["libc.so.6"])) + len(b"\0.nv_fatbin\0") + 64 * 60_001
    (tmp_path / "many.so").write_bytes(with_sections(60_000, b".nv_fatbin", place, len(content)) + content)
    answer = limited(tmp_path)
    assert "too many pieces of device code" in answer.stdout
    assert answer.code == 2


def test_a_sparse_file_of_a_terabyte(tmp_path: Path) -> None:
    path = tmp_path / "hole.so"
    path.write_bytes(with_sections(1, b".nv_fatbin", 1 << 20, 1 << 39))
    os.truncate(path, 1 << 40)
    answer = limited(tmp_path)
    assert "only zeros" in answer.stdout
    bare = tmp_path / "bare.so"
    data = bytearray(library(["libc.so.6"]))
    data[96:112] = struct.pack("<QQ", 1 << 39, 1 << 35)  # the one segment's size in the file and in memory
    bare.write_bytes(bytes(data))
    os.truncate(bare, 1 << 40)
    assert limited(bare).code == 2


def test_cycles_and_thousands_of_needs(tmp_path: Path) -> None:
    (tmp_path / "self.so").write_bytes(library(["self.so"], soname="self.so", runpath="$ORIGIN"))
    (tmp_path / "a.so").write_bytes(library(["b.so"], soname="a.so", runpath="$ORIGIN:$ORIGIN/$ORIGIN"))
    (tmp_path / "b.so").write_bytes(library(["a.so"], soname="b.so", runpath="$ORIGIN/./../" + tmp_path.name))
    (tmp_path / "deep.so").write_bytes(library(["chain0.so"], rpath="$ORIGIN"))
    for number in range(300):
        (tmp_path / f"chain{number}.so").write_bytes(library([f"chain{number + 1}.so"] if number < 299 else []))
    (tmp_path / "many.so").write_bytes(library([f"no{number}.so" for number in range(4000)], runpath="/a:" * 20_000))
    (tmp_path / "more.so").write_bytes(library([f"no{number}.so" for number in range(5000)]))
    files = {f"{number}" for number in range(6000)}
    long = ":".join(f"$ORIGIN/{number}" for number in sorted(files))[:60_000]
    (tmp_path / "long.so").write_bytes(library([f"no{number}.so" for number in range(4000)], runpath=long))
    answer = limited(tmp_path, "--json")
    (found,) = json.loads(answer.stdout)["inspected"]
    files_by_name = {file["path"]: file for file in found["files"]}
    for name in ("self.so", "a.so", "b.so", "deep.so"):
        assert not files_by_name[name]["missing_libraries"]
        assert not files_by_name[name]["unreadable"]
    assert "claims to need 5000" in files_by_name["more.so"]["unreadable"]
    assert files_by_name["many.so"]["missing_libraries"] or files_by_name["many.so"]["unreadable"]
    assert "implausibly many steps" in files_by_name["long.so"]["unreadable"]
    assert answer.code == 2


def test_a_chain_of_long_search_paths(tmp_path: Path) -> None:
    """Each library inherits those of all above it."""
    for number in range(70):
        rpath = f"$ORIGIN:/{number}" + "/x" * 1500 + f":/{number}" * 9000
        (tmp_path / f"c{number}.so").write_bytes(library([f"c{number + 1}.so"], rpath=rpath))
    answer = limited(tmp_path, "--json")
    assert answer.code == 2
    assert len(answer.stdout) < 300 << 20
    assert len(json.loads(answer.stdout)["inspected"][0]["files"]) == 70


def bomb(levels: int) -> str:
    """A mangled name that doubles what is written out at each level: pair<pair<…>, pair<…>>."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "_Z1f4pairIiiE" + "".join(f"S_IS{digits[level]}_S{digits[level]}_E" for level in range(levels))


def test_names_that_take_all_memory_to_write_out(tmp_path: Path) -> None:
    assert demangled(bomb(3)).startswith("f(pair<int, int>, pair<pair<int, int>, pair<int, int> >")
    assert demangled(bomb(30)) == bomb(30)
    assert demangled("_Z1f" + "P" * 100_000 + "v")[:3] == "_Z1"
    code = f'extern int wanted(void) asm("{bomb(30)}"); int g(void) {{ return wanted(); }}'
    build(tmp_path / "wants.so", code)
    answer = limited(tmp_path)
    assert f"1 symbol has no definition: {bomb(30)}" in answer.stdout


def test_a_name_with_a_number_of_thousands_of_digits() -> None:
    """Python refuses to convert one: that was a crash."""
    assert qualified_name(b"_ZN" + b"1" * 5000) == b""
    assert wheel_problem(["cp3" + "1" * 5000 + "-abi3-any"], Interpreter("", (3, 12), "", "", "")) != ""


def test_many_missing_symbols_beside_many_that_are_alike() -> None:
    wanted = {name: qualified_name(name) for name in (f"_ZN1a4f{number:03}Ev".encode() for number in range(1000))}
    offered = {name[:-1] + b"i" for name in wanted} | {f"_ZN1a4f{number:03}El".encode() for number in range(1000)}
    found = most_alike(wanted, offered)
    assert len(found) == 1000
    assert found[b"_ZN1a4f007Ev"] == (b"_ZN1a4f007Ei", b"_ZN1a4f007El")


# ---- environments


def venv(folder: Path) -> Path:
    """What is looked at of a virtual environment; gives its site-packages."""
    site = folder / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    (folder / "pyvenv.cfg").write_text("version = 3.11.7\n")
    return site


def dist(site: Path, name: str, metadata: str = "", record: str = "") -> Path:
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n{metadata}")
    (folder / "RECORD").write_text(record)
    return folder


def test_lines_that_take_a_regular_expression_forever(tmp_path: Path) -> None:
    site = venv(tmp_path / "env")
    dist(site, "slow", "Requires-Dist: a" + " " * 400_000 + "b\n")
    odd = site / "odd.dist-info"
    odd.mkdir()
    (odd / "METADATA").write_text("Name: x" + "\t" * 400_000 + "y\nVersion: 1\n")
    answer = limited(tmp_path / "env")
    assert "requirement that cannot be judged" in answer.stdout


def test_pipes_and_endless_files_in_the_place_of_files(tmp_path: Path) -> None:
    site = venv(tmp_path / "env")
    build(site / "pipes" / "code.so", "int f(void); int g(void) { return f(); }", options=["-Wl,--no-as-needed", "-lm"])
    (site / "pipes" / "libpipe.so.1").unlink(missing_ok=True)
    os.mkfifo(site / "pipes" / "libpipe.so.1")
    os.mkfifo(site / "pipes" / "__init__.py")
    (site / "pipes.py").symlink_to("/dev/zero")
    for name, file in (("a", "METADATA"), ("b", "RECORD"), ("c", "WHEEL")):
        folder = dist(site, name)
        (folder / file).unlink(missing_ok=True)
        os.mkfifo(folder / file)
        other = dist(site, f"{name}{name}")
        (other / file).unlink(missing_ok=True)
        (other / file).symlink_to("/dev/zero")
    report = inspect_native(tmp_path / "env")
    by_path = {Path(file.path).name: file for file in report.files}
    assert by_path["libpipe.so.1"].unreadable == "it is no regular file"
    assert {item.lack for item in unmet(tmp_path / "env")} == {"metadata"}
    assert len(installed_dists(tmp_path / "env")) == 6


def test_python_code_that_is_deep(tmp_path: Path) -> None:
    """Deeper than Python's stack: a long `elif`, a long sum, packages that import each other in a row."""
    site = venv(tmp_path / "env")
    for number in range(1200):
        (site / f"p{number}").mkdir()
        (site / f"p{number}" / "__init__.py").write_text(f"import p{number + 1}\n")
    for name, code in (
        ("elif", "if a: pass\n" + "".join(f"elif a == {number}: import p3\n" for number in range(2000))),
        ("sum", "import p3\nx = " + " + ".join(["1"] * 2500)),
        ("parentheses", "(" * 5000),
        ("minus", "x = " + "-" * 50_000 + "1"),
        ("coding", "# coding: no-such-coding\nimport p3\n"),
        ("warning", 'x = "\\d"\nimport p3\n'),
    ):
        (site / f"q_{name}").mkdir()
        (site / f"q_{name}" / "__init__.py").write_text(code)
    order = ImportOrder(site, ())
    assert order.before(f"{site}/p0/x.so")
    assert "p3" in order.before(f"{site}/q_warning/x.so")
    for name in ("elif", "sum", "parentheses", "minus", "coding"):
        order.before(f"{site}/q_{name}/x.so")
        order.loads(f"q_{name}")


def test_odd_settings_of_an_environment(tmp_path: Path) -> None:
    venv(tmp_path / "env")
    (tmp_path / "env" / "pyvenv.cfg").write_text("version = 3." + "1" * 5000 + "\n")
    found = find_interpreter(tmp_path / "env")
    assert found is not None
    assert found.version[0] == 3


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(record=st.binary(max_size=200), metadata=st.binary(max_size=200), settings_file=st.binary(max_size=60))
def test_records_and_metadata_of_any_bytes(
    tmp_path_factory: pytest.TempPathFactory, record: bytes, metadata: bytes, settings_file: bytes
) -> None:
    folder = tmp_path_factory.mktemp("env")
    site = venv(folder)
    (folder / "pyvenv.cfg").write_bytes(b"version = 3.11" + settings_file)
    for name in ("a", "b"):
        info = dist(site, name)
        (info / "RECORD").write_bytes(record)
        (info / "METADATA").write_bytes(b"Name: a\nRequires-Dist: " + metadata)
    for look in (conflicts, unmet, inspect_native):
        with suppress(CrossgradeError):
            look(folder)


# ---- what is damaged, and must be said


def test_a_library_that_is_no_longer_one_is_said(tmp_path: Path) -> None:
    """Cut to nothing, zeroed, or of another type: such files were passed over in silence."""
    sound = build(tmp_path / "sound.so").read_bytes()
    damaged = {
        "libempty.so.1": (b"", "file too short"),
        "three.so": (sound[:3], "file too short"),
        "zeros.so": (bytes(len(sound)), "invalid ELF header"),
        "program.so": (sound[:16] + b"\x02\0" + sound[18:], "named as a library"),
        "object.so": (sound[:16] + b"\x01\0" + sound[18:], "named as a library"),
        "cubin.so": (sound[:18] + b"\xbe\0" + sound[20:], "named as a library"),
        "odd.so": (sound[:16] + b"\x63\0" + sound[18:], "neither a shared library nor a program"),
    }
    for name, (content, _) in damaged.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "script.so").write_text("/* GNU ld script */ INPUT(-lc)\n")
    found = {file.path: file.unreadable for file in inspect_native(tmp_path).files}
    assert found.keys() == {"sound.so", *damaged}
    for name, (_, words) in damaged.items():
        assert words in found[name]
    answer = crossgrade("inspect", tmp_path / "libempty.so.1")
    assert answer.code == 2
    assert "cannot be read: file too short" in answer.stdout


def test_a_file_that_is_named_is_always_judged(tmp_path: Path) -> None:
    """However its path is written, and also when it is a link to a file that is there."""
    lacks = build(tmp_path / "deep" / "lacks.so", "int f(void); int g(void) { return f(); }")
    link = tmp_path / "deep" / "link.so"
    link.symlink_to(lacks)
    for path in (lacks, link, tmp_path / "deep" / ".." / "deep" / "lacks.so"):
        answer = crossgrade("inspect", path)
        assert answer.code == 2, path
        assert "1 symbol has no definition: f" in answer.stdout
    (tmp_path / "text.md").write_text("no code")
    answer = crossgrade("inspect", tmp_path / "text.md")
    assert answer.code == 2
    assert "cannot be read: invalid ELF header" in answer.stdout


def test_a_damaged_library_is_the_same_whoever_is_asked_first(tmp_path: Path) -> None:
    """Its symbols are damaged: it cannot be read, and what needs it is said to fail, in both orders of their names."""
    for first, second in (("a", "b"), ("b", "a")):
        folder = tmp_path / first
        options = ["-Wl,-soname,lib.so", "-Wl,--hash-style=gnu"]
        needed = build(folder / f"{first}.so", "int f(void) { return 1; }", options=options)
        (folder / "lib.so").symlink_to(needed)
        build(
            folder / f"{second}.so",
            "int f(void); int g(void) { return f(); }",
            libraries=[needed],
            options=["-Wl,-rpath,$ORIGIN"],
        )
        data = needed.read_bytes()
        needed.write_bytes(data.replace(b"\0f\0", b"\0h\0"))
        found = {file.path: file for file in inspect_native(folder).files}
        assert "not fit its symbols" in found[f"{first}.so"].unreadable
        (missing,) = found[f"{second}.so"].missing_libraries
        assert "not fit its symbols" in missing.unfit[0]


def test_a_damaged_python_is_named(tmp_path: Path) -> None:
    venv(tmp_path / "env")
    program = tmp_path / "env" / "bin" / "python"
    program.unlink()
    program.write_bytes(Path(sys.executable).read_bytes()[:5000])
    answer = crossgrade("inspect", tmp_path / "env")
    assert answer.code == 1
    assert str(program) in answer.stderr


def test_names_cannot_forge_what_is_said(tmp_path: Path) -> None:
    """Names in files may hold anything: new lines, escape sequences, bytes that are no text."""
    data = bytearray(library(["x\n  loading: passed\x1b[2J"]))
    (tmp_path / "odd.so").write_bytes(bytes(data).replace(b"x\n", b"\xff\n"))
    answer = crossgrade("inspect", tmp_path)
    assert answer.code == 2
    assert "\x1b" not in answer.stdout
    assert "\n  loading: passed" not in answer.stdout
    assert r"\udcff\n  loading: passed\x1b[2J" in answer.stdout


# ---- wheels


def wheel(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_a_wheel_that_would_fill_the_disk(tmp_path: Path) -> None:
    path = wheel(tmp_path / "big-1-py3-none-any.whl", {"big.so": bytes(120 << 20)})
    with pytest.raises(UnreadableWheelError, match="claims to unpack to"), laid_out([path], None):
        pass


@pytest.mark.parametrize("name", [".", "/", "..", "a/../../b.so", "a\\b.so", "x" * 300 + ".so", "same/", "same"])
def test_odd_names_in_a_wheel(tmp_path: Path, name: str) -> None:
    path = wheel(tmp_path / "odd-1-py3-none-any.whl", {"same/inner.so": b"1", name: b"2"})
    with suppress(UnreadableWheelError), laid_out([path], None) as layout:
        assert all(Path(file).is_relative_to(layout.root) for file in layout.files)


GOOD_WHEEL = {
    "a/code.so": b"\x7fELF" * 40,
    "a-1.dist-info/METADATA": b"Name: a\n",
    "a-1.dist-info/RECORD": b"a,,\n" * 9,
}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([0, 8, 12, 14]),
    st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=4)), max_size=4),
    st.floats(0, 1),
)
def test_damaged_wheels(
    tmp_path_factory: pytest.TempPathFactory, method: int, changes: list[tuple[float, bytes]], share: float
) -> None:
    path = tmp_path_factory.mktemp("wheel") / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in GOOD_WHEEL.items():
            archive.writestr(name, content)
    data = bytearray(path.read_bytes())
    for place, content in changes:
        at = int(place * (len(data) - 1))
        data[at : at + len(content)] = content
    path.write_bytes(data if share > 0.5 else data[: int(2 * share * len(data))])
    with suppress(UnreadableWheelError), laid_out([path], None) as layout:
        assert all(Path(file).is_relative_to(layout.root) for file in layout.files)
