"""The ABI check against its oracles, the loader and binutils: symbols and their versions."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.native import PYTHON, agree, build, have_gcc, report_of

from crossgrade.gates.abi import judge_abi
from crossgrade.inspect.elf import FileSource, parse_elf
from crossgrade.inspect.elf_index import ElfIndex
from crossgrade.inspect.elf_symbols import list_symbols
from crossgrade.inspect.loader_settings import read_loader_settings
from crossgrade.inspect.loading import Loader

pytestmark = pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")


def test_a_missing_symbol(tmp_path: Path) -> None:
    code = "extern int nowhere(int); int call(void) { return nowhere(1); }"
    path = build(tmp_path / "caller.so", code)
    found, opened = agree(tmp_path, path)
    assert [symbol.name for symbol in found.missing_symbols] == ["nowhere"]
    assert "undefined symbol: nowhere" in opened.message


def test_a_missing_symbol_is_said_to_be_where_it_is(tmp_path: Path) -> None:
    build(tmp_path / "libhas.so", "int somewhere(int x) { return x; }")
    path = build(tmp_path / "caller.so", "extern int somewhere(int); int call(void) { return somewhere(1); }")
    found, _ = agree(tmp_path, path)
    assert found.defined_elsewhere == (("somewhere", ("libhas.so",)),)
    assert "defined by libhas.so, which is not among the libraries it loads" in judge_abi(report_of(tmp_path)).reason


def test_a_weak_reference_may_stay_open(tmp_path: Path) -> None:
    code = "extern int maybe(void) __attribute__((weak)); int call(void) { return maybe ? maybe() : 0; }"
    assert agree(tmp_path, build(tmp_path / "weak.so", code))[0].resolves


def test_protected_symbols_answer_others(tmp_path: Path) -> None:
    code = '__attribute__((visibility("protected"))) int shown = 1;'
    library = build(tmp_path / "libinner.so", code, options=["-Wl,-soname,libinner.so"])
    options = ["-Wl,-rpath,$ORIGIN"]
    path = build(tmp_path / "outer.so", "extern int shown; int *p = &shown;", libraries=[library], options=options)
    assert agree(tmp_path, path)[0].resolves


def versioned(tmp_path: Path, code: str, script: str) -> Path:
    options = ["-Wl,-soname,libv.so.1"]
    return build(tmp_path / "libv.so.1", code, options=options, version_script=script)


def test_a_missing_symbol_version(tmp_path: Path) -> None:
    code = "int f(void) { return 1; } int g(void) { return 2; }"
    library = versioned(tmp_path, code, "V_1.0 { global: f; local: *; };\nV_1.2 { global: g; } V_1.0;")
    path = build(
        tmp_path / "user.so",
        "int f(void); int g(void); int h(void) { return f() + g(); }",
        libraries=[library],
        options=["-Wl,-rpath,$ORIGIN"],
    )
    assert agree(tmp_path, path)[0].resolves
    versioned(tmp_path, code, "V_1.0 { global: f; g; local: *; };")
    found, opened = agree(tmp_path, path)
    assert [(missing.version, missing.newest) for missing in found.missing_versions] == [("V_1.2", "V_1.0")]
    assert "version `V_1.2' not found" in opened.message
    reason = judge_abi(report_of(tmp_path)).reason
    assert reason == "user.so needs V_1.2 of libv.so.1; the one found has up to V_1.0"


def test_a_symbol_under_another_version(tmp_path: Path) -> None:
    code = "int f(void) { return 1; } int g(void) { return 2; }"
    library = versioned(tmp_path, code, "V_1 { global: f; g; };\nV_2 { };")
    path = build(
        tmp_path / "user.so",
        "int f(void); int g(void); int h(void) { return f() + g(); }",
        libraries=[library],
        options=["-Wl,-rpath,$ORIGIN"],
    )
    versioned(tmp_path, code, "V_1 { global: f; local: *; };\nV_2 { global: g; } V_1;")
    found, opened = agree(tmp_path, path)
    assert [(symbol.name, symbol.version) for symbol in found.missing_symbols] == [("g", "V_1")]
    assert "undefined symbol: g, version V_1" in opened.message


def test_a_library_without_versions_answers_references_with_one(tmp_path: Path) -> None:
    code = "int f(void) { return 1; }"
    library = versioned(tmp_path, code, "V_1 { global: f; };")
    user = "int f(void); int h(void) { return f(); }"
    path = build(tmp_path / "user.so", user, libraries=[library], options=["-Wl,-rpath,$ORIGIN"])
    build(library, code, options=["-Wl,-soname,libv.so.1"])
    assert agree(tmp_path, path)[0].resolves


def test_a_reference_without_a_version_takes_the_default_or_the_oldest(tmp_path: Path) -> None:
    plain = build(tmp_path / "libv.so.1", "int f(void) { return 1; }", options=["-Wl,-soname,libv.so.1"])
    user = "int f(void); int h(void) { return f(); }"
    path = build(tmp_path / "user.so", user, libraries=[plain], options=["-Wl,-rpath,$ORIGIN"])
    versioned(tmp_path, "int f(void) { return 1; }", "V_1 { global: f; };")
    assert agree(tmp_path, path)[0].resolves
    for script, version in (
        ("V_1 { };", "V_1"),
        ("V_1 { };\nV_2 { };", "V_2"),
        ("V_1 { };\nV_2 { };\nV_3 {};", "V_3"),
    ):
        code = f'int f_impl(void) {{ return 1; }} __asm__(".symver f_impl, f@{version}");'
        versioned(tmp_path, code, script)
        agree(tmp_path, path)


def test_too_new_a_glibc_is_said_with_what_this_system_has(tmp_path: Path) -> None:
    future = "GLIBC_2.99"
    options = ["-Wl,-soname,libc.so.6"]
    fake = build(
        tmp_path / "fake" / "libc.so.6",
        "int f(void) { return 1; }",
        options=options,
        version_script=f"{future} {{ global: f; }};",
    )
    path = build(
        tmp_path / "user.so",
        "int f(void); int h(void) { return f(); }",
        libraries=[fake],
        options=["-nostdlib"],
    )
    shutil.rmtree(fake.parent)
    found, opened = agree(tmp_path, path)
    assert f"version `{future}' not found" in opened.message
    glibc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    newest = found.missing_versions[0].newest
    assert newest.startswith("GLIBC_2.")
    assert tuple(map(int, newest[6:].split("."))) <= tuple(map(int, glibc.split()[1].split(".")))
    reason = judge_abi(report_of(tmp_path)).reason
    assert reason == f"user.so needs GLIBC_2.99 of libc.so.6; this system has up to {newest}"


def test_symbols_of_the_interpreter_count(tmp_path: Path) -> None:
    path = build(
        tmp_path / "ext.so",
        "void *PyLong_FromLong(long); void *PyInit_ext(void) { return PyLong_FromLong(1); }",
    )
    found, _ = agree(tmp_path, path)
    assert found.kind == "extension"


def test_a_reference_that_no_relocation_uses_is_never_looked_up(tmp_path: Path) -> None:
    """The inspector reads relocations: a symbol that is only listed does not stop the loader."""
    options = ["-Wl,-u,only_listed", "-Wl,--unresolved-symbols=ignore-all"]
    path = build(tmp_path / "listed.so", "int x;", options=options)
    agree(tmp_path, path)


def test_a_library_without_definitions_or_section_headers(tmp_path: Path) -> None:
    """Nothing states the number of symbols then, but for the relocations."""
    code = "extern int nowhere; static int *p = &nowhere;\n"
    code += "__attribute__((constructor)) static void f(void) { p++; }\n"
    path = build(tmp_path / "user.so", code, version_script="{ local: *; };")
    assert not agree(tmp_path, path)[0].resolves
    raw = bytearray(path.read_bytes())
    raw[40:48] = bytes(8)  # e_shoff
    raw[58:64] = bytes(6)  # e_shentsize, e_shnum, e_shstrndx
    path.write_bytes(raw)
    found, _ = agree(tmp_path, path)
    assert [symbol.name for symbol in found.missing_symbols] == ["nowhere"]


def test_symbols_are_listed_as_nm_lists_them() -> None:
    """Every dynamic symbol of Python, numpy and the system: name, version, default or not, defined or not."""
    import numpy

    places = sorted(Path(numpy.__file__).parent.parent.glob("numpy*/**/*.so*"))
    assert places
    system = [Path(item.path) for item in Loader(ElfIndex(), read_loader_settings()).start(str(PYTHON))[0].scope]
    for path in [*system, *places[:40]]:
        with FileSource(path) as source:
            elf = parse_elf(source)
            versions = {f"{v.version}@@{v.version}" for v in elf.defined_versions}
            ours = sorted(
                (
                    s.name + (f"{'@@' if s.default and s.defined else '@'}{s.version}" if s.version else ""),
                    s.defined,
                )
                for s in list_symbols(source, elf)
            )
        answer = subprocess.run(["nm", "-D", str(path)], capture_output=True, text=True, check=True)
        theirs = []
        for line in answer.stdout.splitlines():
            kind, name = line[17:].split(" ", 1)
            theirs.append((name, kind not in "Uwv"))
        # nm leaves out the version of the symbols that stand for a version itself
        theirs = [(f"{name}@@{name}" if f"{name}@@{name}" in versions else name, seen) for name, seen in theirs]
        assert ours == sorted(theirs), path


def test_needs_are_read_as_readelf_reads_them() -> None:
    import numpy

    for path in sorted(Path(numpy.__file__).parent.parent.glob("numpy*/**/*.so*")):
        with FileSource(path) as source:
            elf = parse_elf(source)
        answer = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True)
        needed = [line.split("[")[1].rstrip("]") for line in answer.stdout.splitlines() if "(NEEDED)" in line]
        assert list(elf.needed) == needed
        for name, value in (
            ("(RPATH)", elf.rpath),
            ("(RUNPATH)", elf.runpath or ""),
            ("(SONAME)", elf.soname or ""),
        ):
            stated = [line.split("[")[1].rstrip("]") for line in answer.stdout.splitlines() if name in line]
            assert stated == ([value] if value else [])


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_the_same_function_with_other_types_is_what_was_built_against_another_version(tmp_path: Path) -> None:
    """As extensions for torch 2.9 fail on torch 2.11: an `int` became `unsigned int`."""
    library = tmp_path / "libc10.so"
    header = "namespace c10 {{ void check({0} code, const char* file) {body} }}\n"
    build(library, header.format("int", body="{}"), options=["-Wl,-soname,libc10.so"], compiler="g++")
    user = header.format("int", body=";") + "void call() { c10::check(1, __FILE__); }\n"
    path = build(tmp_path / "user.so", user, libraries=[library], options=["-Wl,-rpath,$ORIGIN"], compiler="g++")
    assert agree(tmp_path, path)[0].resolves
    build(library, header.format("unsigned int", body="{}"), options=["-Wl,-soname,libc10.so"], compiler="g++")
    found, opened = agree(tmp_path, path)
    assert "undefined symbol: _ZN3c105checkEiPKc" in opened.message
    assert [(name, [other.name for other in others]) for name, others in found.alike] == [
        ("_ZN3c105checkEiPKc", ["_ZN3c105checkEjPKc"])
    ]
    reason = judge_abi(report_of(tmp_path)).reason
    assert "c10::check(int, char const*)" in reason
    assert "there is c10::check(unsigned int, char const*) in libc10.so" in reason
    assert "built against another version" in reason
