"""The ABI check against its oracle, the loader itself: which libraries are found. Small real files by gcc."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.native import agree, build, build_program, dlopen, file_of, have_gcc, report_of

from crossgrade.gates.abi import judge_abi

pytestmark = pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")


def test_a_missing_library_is_named_as_the_loader_names_it(tmp_path: Path) -> None:
    gone = build(tmp_path / "libgone.so.1", options=["-Wl,-soname,libgone.so.1"])
    path = build(tmp_path / "user.so", libraries=[gone])
    gone.unlink()
    found, opened = agree(tmp_path, path)
    assert [missing.soname for missing in found.missing_libraries] == ["libgone.so.1"]
    assert "libgone.so.1: cannot open shared object file" in opened.message
    verdict = judge_abi(report_of(tmp_path))
    assert verdict.outcome == "failed"
    assert verdict.reason.startswith("user.so needs libgone.so.1, which is nowhere on its search path")


def test_the_soname_table_explains_what_is_missing(tmp_path: Path) -> None:
    old = build(tmp_path / "libcudart.so.12", options=["-Wl,-soname,libcudart.so.12"])
    path = build(
        tmp_path / "pkg" / "_kernels.abi3.so",
        "int PyInit__kernels(void) { return 0; }",
        libraries=[old],
        options=["-Wl,--enable-new-dtags,-rpath,$ORIGIN/../nvidia/cuda_runtime/lib"],
    )
    build(tmp_path / "nvidia" / "cu13" / "lib" / "libcudart.so.13", options=["-Wl,-soname,libcudart.so.13"])
    old.unlink()
    agree(tmp_path, path)
    reason = judge_abi(report_of(tmp_path)).reason
    assert reason == (
        "pkg/_kernels.abi3.so needs libcudart.so.12, which is nowhere on its search path (RUNPATH "
        "$ORIGIN/../nvidia/cuda_runtime/lib); libcudart.so.12 is the CUDA 12 runtime; libcudart.so.13 is "
        "installed → built against CUDA 12; rebuild it, or install its build for CUDA 13"
    )


@pytest.mark.parametrize("tag", ["--disable-new-dtags", "--enable-new-dtags"])
@pytest.mark.parametrize("state", ["$ORIGIN/deps", "${ORIGIN}/deps", "$ORIGIN/no:$ORIGIN/deps", "$ORIGIN/no", ""])
def test_search_paths_with_origin(tmp_path: Path, tag: str, state: str) -> None:
    library = build(tmp_path / "deps" / "libinner.so", options=["-Wl,-soname,libinner.so"])
    options = [f"-Wl,{tag},-rpath,{state}"] if state else []
    path = build(tmp_path / "outer.so", libraries=[library], options=options)
    found, _ = agree(tmp_path, path)
    assert found.resolves == ("deps" in state)


@pytest.mark.parametrize("tag", ["--disable-new-dtags", "--enable-new-dtags"])
def test_rpath_is_inherited_and_runpath_is_not(tmp_path: Path, tag: str) -> None:
    inner = build(tmp_path / "deps" / "libinner.so", options=["-Wl,-soname,libinner.so"])
    middle = build(tmp_path / "deps" / "libmiddle.so", libraries=[inner], options=["-Wl,-soname,libmiddle.so"])
    link = ["-L", str(tmp_path / "deps"), f"-Wl,{tag},-rpath,$ORIGIN/deps", "-Wl,--allow-shlib-undefined"]
    path = build(tmp_path / "outer.so", libraries=[middle], options=link)
    found, _ = agree(tmp_path, path)
    assert found.resolves == (tag == "--disable-new-dtags")


def test_a_runpath_in_the_middle_hides_the_rpaths_above(tmp_path: Path) -> None:
    inner = build(tmp_path / "deps" / "libinner.so", options=["-Wl,-soname,libinner.so"])
    hiding = ["-Wl,-soname,libmiddle.so", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/nowhere"]
    middle = build(tmp_path / "deps" / "libmiddle.so", libraries=[inner], options=hiding)
    link = ["-Wl,--disable-new-dtags,-rpath,$ORIGIN/deps", "-Wl,--allow-shlib-undefined"]
    path = build(tmp_path / "outer.so", libraries=[middle], options=link)
    found, _ = agree(tmp_path, path)
    assert [missing.needed_by for missing in found.missing_libraries] == ["deps/libmiddle.so"]


def test_a_library_that_is_loaded_already_needs_no_path(tmp_path: Path) -> None:
    first = build(tmp_path / "a" / "libfirst.so.3", "int first = 1;", options=["-Wl,-soname,libfirst.so.3"])
    path = build(tmp_path / "b" / "second.so", "extern int first; int *p = &first;", libraries=[first])
    assert not agree(tmp_path, path)[0].resolves
    assert agree(tmp_path, path, preload=[first])[0].resolves


def test_a_file_name_is_no_soname_for_what_was_loaded_before(tmp_path: Path) -> None:
    nameless = build(tmp_path / "a" / "libnameless.so", "int nameless = 1;")
    options = ["-L", str(nameless.parent), "-lnameless"]
    path = build(tmp_path / "b" / "second.so", "extern int nameless; int *p = &nameless;", options=options)
    assert not agree(tmp_path, path, preload=[nameless])[0].resolves


def test_symbols_of_a_preloaded_library_count(tmp_path: Path) -> None:
    first = build(tmp_path / "libfirst.so", "int first = 1;", options=["-Wl,-soname,libfirst.so"])
    path = build(tmp_path / "second.so", "extern int first; int *p = &first;")
    assert not agree(tmp_path, path)[0].resolves
    assert agree(tmp_path, path, preload=[first])[0].resolves


def test_library_path(tmp_path: Path) -> None:
    library = build(tmp_path / "deps" / "libinner.so", options=["-Wl,-soname,libinner.so"])
    path = build(tmp_path / "outer.so", libraries=[library])
    assert not agree(tmp_path, path)[0].resolves
    assert agree(tmp_path, path, library_path=[tmp_path / "deps"])[0].resolves


def test_rpath_comes_before_library_path_and_runpath_after(tmp_path: Path) -> None:
    good = build(tmp_path / "good" / "libinner.so", "int inner = 1;", options=["-Wl,-soname,libinner.so"])
    build(tmp_path / "bad" / "libinner.so", "int other = 1;", options=["-Wl,-soname,libinner.so"])
    code = "extern int inner; int *p = &inner;"
    for tag, name in (("--disable-new-dtags", "rpath.so"), ("--enable-new-dtags", "runpath.so")):
        options = [f"-Wl,{tag},-rpath,$ORIGIN/good"]
        path = build(tmp_path / name, code, libraries=[good], options=options)
        found, opened = agree(tmp_path, path, library_path=[tmp_path / "bad"])
        assert found.resolves == (name == "rpath.so")
        if not found.resolves:
            assert [symbol.name for symbol in found.missing_symbols] == ["inner"]
            assert "undefined symbol: inner" in opened.message


def test_candidates_for_another_machine_are_skipped(tmp_path: Path) -> None:
    good = build(tmp_path / "good" / "libinner.so", "int inner = 1;", options=["-Wl,-soname,libinner.so"])
    wrong = tmp_path / "wrong" / "libinner.so"
    wrong.parent.mkdir()
    raw = bytearray(good.read_bytes())
    raw[18:20] = (183 if raw[18] == 62 else 62).to_bytes(2, "little")  # AArch64, or x86-64 on AArch64
    wrong.write_bytes(raw)
    options = ["-Wl,-rpath,$ORIGIN/wrong:$ORIGIN/good"]
    path = build(tmp_path / "outer.so", "extern int inner; int *p = &inner;", libraries=[good], options=options)
    assert agree(tmp_path, path)[0].resolves
    good.unlink()
    found, _ = agree(tmp_path, path)
    assert "it is built for" in found.missing_libraries[0].unfit[0]


def test_a_candidate_that_is_no_elf_file_stops_the_loader(tmp_path: Path) -> None:
    good = build(tmp_path / "good" / "libinner.so", options=["-Wl,-soname,libinner.so"])
    script = tmp_path / "first" / "libinner.so"
    script.parent.mkdir()
    script.write_text("/* GNU ld script */ GROUP ( libinner.so.1 )" + " " * 100)
    options = ["-Wl,-rpath,$ORIGIN/first:$ORIGIN/good"]
    path = build(tmp_path / "outer.so", libraries=[good], options=options)
    found, opened = agree(tmp_path, path)
    assert "invalid ELF header" in found.missing_libraries[0].unfit[0]
    assert "invalid ELF header" in opened.message


def test_the_driver_is_a_category_of_its_own(tmp_path: Path) -> None:
    stub = build(
        tmp_path / "stubs" / "libcuda.so.1",
        "int cuInit(int f) { return f; }",
        options=["-Wl,-soname,libcuda.so.1"],
    )
    code = "int cuInit(int); int call(void) { return cuInit(0); }"
    path = build(tmp_path / "user.so", code, libraries=[stub])
    assert agree(tmp_path, path, library_path=[stub.parent])[0].resolves
    shutil.rmtree(stub.parent)
    report = report_of(tmp_path)
    found = file_of(report, path)
    if not found.from_driver.libraries:
        pytest.skip("this machine has the NVIDIA driver")
    assert found.resolves
    assert (found.from_driver.libraries, found.from_driver.symbols) == (("libcuda.so.1",), ("cuInit",))
    verdict = judge_abi(report)
    assert verdict.outcome == "passed"
    assert "1 need the NVIDIA driver" in verdict.reason


def test_a_fault_is_reported_once_and_names_what_it_breaks(tmp_path: Path) -> None:
    gone = build(tmp_path / "libgone.so.1", options=["-Wl,-soname,libgone.so.1"])
    here = ["-Wl,-rpath,$ORIGIN"]
    middle = build(tmp_path / "libmiddle.so", libraries=[gone], options=["-Wl,-soname,libmiddle.so", *here])
    build(tmp_path / "outer.so", libraries=[middle], options=[*here, "-Wl,--allow-shlib-undefined"])
    gone.unlink()
    verdict = judge_abi(report_of(tmp_path))
    failures = verdict.of_level("failure")
    assert [finding.subject for finding in failures] == ["libmiddle.so"]
    assert failures[0].evidence["also_breaks"] == ["outer.so"]
    ignoring = judge_abi(report_of(tmp_path), ignore=["libmiddle.so"])
    assert [finding.subject for finding in ignoring.of_level("failure")] == ["outer.so"]
    assert judge_abi(report_of(tmp_path), ignore=["*.so"]).outcome == "passed"
    assert len(judge_abi(report_of(tmp_path), ignore=["*.so"]).of_level("note")) == 2


def test_a_library_that_loads_only_in_company_is_a_note(tmp_path: Path) -> None:
    inner = build(tmp_path / "deps" / "libinner.so", options=["-Wl,-soname,libinner.so"])
    middle = build(tmp_path / "deps" / "libmiddle.so", libraries=[inner], options=["-Wl,-soname,libmiddle.so"])
    link = ["-Wl,--disable-new-dtags,-rpath,$ORIGIN/deps", "-Wl,--allow-shlib-undefined"]
    outer = build(tmp_path / "outer.so", libraries=[middle], options=link)
    assert dlopen(outer).loads
    assert not dlopen(middle).loads
    verdict = judge_abi(report_of(tmp_path))
    assert verdict.outcome == "passed"
    assert "it loads only after outer.so" in verdict.of_level("note")[0].message


def test_programs_are_judged_without_python(tmp_path: Path) -> None:
    library = build(tmp_path / "lib" / "libinner.so", "int f(void) { return 0; }", options=["-Wl,-soname,libinner.so"])
    code = "int f(void); int main(void) { return f(); }"
    options = ["-Wl,-rpath,$ORIGIN/../lib"]
    program = build_program(tmp_path / "bin" / "tool", code, libraries=[library], options=options)
    found = file_of(report_of(tmp_path), program)
    assert (found.kind, found.resolves) == ("executable", True)
    assert subprocess.run([program], check=False).returncode == 0
    library.unlink()
    found = file_of(report_of(tmp_path), program)
    assert [missing.soname for missing in found.missing_libraries] == ["libinner.so"]
    assert subprocess.run([program], check=False, capture_output=True).returncode == 127


@pytest.mark.parametrize("cut", [40, 64, 1000, 0.5, 0.9, -1])
def test_truncated_files_are_unreadable_and_fail(tmp_path: Path, cut: float) -> None:
    path = build(tmp_path / "lib.so", "int f(void) { return 1; }")
    raw = path.read_bytes()
    path.write_bytes(raw[: int(cut * len(raw)) if 0 < cut < 1 else int(cut)])
    verdict = judge_abi(report_of(tmp_path))
    assert verdict.outcome == "failed"
    assert "cannot be read" in verdict.reason


def test_files_of_other_kinds_are_told_apart(tmp_path: Path) -> None:
    path = build(tmp_path / "lib.so", "int f(void) { return 1; }")
    raw = bytearray(path.read_bytes())
    raw[18:20] = (243).to_bytes(2, "little")  # RISC-V
    (tmp_path / "foreign.so").write_bytes(raw)
    extension = build(tmp_path / "ext.so", "int PyInit_ext(void) { return 0; }")
    subprocess.run(["gcc", "-c", "-x", "c", "-o", str(tmp_path / "part.o"), "/dev/null"], check=True)
    (tmp_path / "link.so.1").symlink_to("lib.so")
    (tmp_path / "notes.so").write_text("INPUT ( lib.so )\n")
    report = report_of(tmp_path)
    kinds = {file.path: (file.kind, file.foreign) for file in report.files}
    assert kinds == {
        "lib.so": ("library", False),
        "foreign.so": ("library", True),
        "ext.so": ("extension", False),
        "part.o": ("object", False),
    }
    verdict = judge_abi(report)
    assert verdict.outcome == "passed"
    assert [finding.subject for finding in verdict.of_level("warning")] == ["foreign.so"]
    raw = bytearray(extension.read_bytes())
    raw[18:20] = (243).to_bytes(2, "little")
    extension.write_bytes(raw)
    assert judge_abi(report_of(tmp_path)).reason.startswith("ext.so is built for riscv, not for this machine")
    assert json.loads(json.dumps(report.to_json())) == report.to_json()


def test_an_environment_without_native_files_passes_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("x = 1\n")
    verdict = judge_abi(report_of(tmp_path))
    assert verdict.outcome == "passed"
    assert verdict.of_level("note")[0].message == "there is no native file in this environment"
