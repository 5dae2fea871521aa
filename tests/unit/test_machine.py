"""Facts of this machine, of recorded ones, and of real toolkits and compilers."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.toolkits import toolkits

from crossgrade.errors import CrossgradeError
from crossgrade.inspect import host_compiler, machine, toolkit
from crossgrade.inspect.host_compiler import HostCompiler, judge_host_compiler
from crossgrade.inspect.query import programs_on_path, run_query
from crossgrade.knowledge import table
from crossgrade.process import Completed, StartError

# As drivers print it: the open kernel module (580), the proprietary one (570).
OPEN_DRIVER = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  \
(dvs-builder@U22-I3-AM04-18-6)  Tue Sep 23 09:55:41 UTC 2025
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)
"""
CLOSED_DRIVER = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.26  Wed Jan  8 05:35:43 UTC 2025
GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)
"""
GPU_INFORMATION = """\
Model: \t\t NVIDIA RTX PRO 6000 Blackwell Server Edition
IRQ:   \t\t 145
GPU UUID: \t {uuid}
Video BIOS: \t 98.02.52.00.02
Bus Type: \t PCIe
DMA Size: \t 52 bits
Bus Location: \t {bus}
Device Minor: \t 0
GPU Excluded:\t No
"""
GPU_QUERY = """\
0, NVIDIA RTX PRO 6000 Blackwell Server Edition, GPU-aaaa, 00000000:01:00.0, 97887, 12.0
1, NVIDIA RTX PRO 6000 Blackwell Server Edition, GPU-bbbb, 00000000:21:00.0, [N/A], 12.0
"""


def recorded_system(place: Path, driver: str = OPEN_DRIVER) -> Path:
    """The files of a machine with two GPUs, of which the second by address comes first in the directory."""
    nvidia = place / "proc" / "driver" / "nvidia"
    for bus, uuid in (("0000:21:00.0", "GPU-bbbb"), ("0000:01:00.0", "GPU-aaaa")):
        folder = nvidia / "gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(GPU_INFORMATION.format(uuid=uuid, bus=bus))
    (nvidia / "version").write_text(driver)
    return place


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# This machine


def test_facts_of_this_machine_agree_with_its_own_tools() -> None:
    facts = machine.collect_facts()
    assert facts.kernel == subprocess.check_output(["uname", "-r"], text=True).strip()
    assert facts.architecture == platform.machine()
    loader = subprocess.check_output(["ldd", "--version"], text=True).splitlines()[0]
    assert facts.glibc is not None
    assert loader.endswith(facts.glibc)
    assert facts.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert facts.processors == int(subprocess.check_output(["nproc"], text=True))
    assert facts.python_executable == sys.executable
    assert facts.host_compiler is not None
    assert facts.host_compiler.version == subprocess.check_output(["g++", "-dumpfullversion"], text=True).strip()
    assert facts.host_compiler.compiles_cpp is True


def test_libstdcxx_versions_are_those_that_readelf_lists() -> None:
    facts = machine.collect_facts()
    assert facts.libstdcxx is not None
    listed = subprocess.check_output(["readelf", "-V", "-W", facts.libstdcxx], text=True)
    for prefix, newest in (("GLIBCXX_", facts.glibcxx), ("CXXABI_", facts.cxxabi)):
        names = {word for word in listed.split() if word.startswith(prefix)}
        assert newest == machine.newest_version(tuple(names), prefix)


def test_facts_are_json() -> None:
    facts = machine.collect_facts()
    document = json.loads(json.dumps(facts.to_json()))
    assert document["glibc"] == facts.glibc
    assert [compiler["command"] for compiler in document["compilers"]] == [c.command for c in facts.compilers]


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="this machine has an NVIDIA driver")
def test_a_machine_without_a_driver_says_so() -> None:
    facts = machine.collect_facts()
    assert facts.driver is None
    assert facts.gpus == ()
    assert facts.unknown["driver"] == facts.unknown["gpus"] == "no NVIDIA driver on this machine"


def test_what_is_missing_is_named_and_not_guessed(tmp_path: Path) -> None:
    facts = machine.collect_facts(environment={"PATH": str(tmp_path)}, system=tmp_path, root=tmp_path / "a/b")
    assert facts.system == "unknown"
    assert (facts.memory_bytes, facts.libstdcxx, facts.glibcxx, facts.host_compiler) == (
        None,
        None,
        None,
        None,
    )
    assert facts.disk_path == str(tmp_path)
    assert facts.disk_free_bytes is not None
    missing = {"system", "memory_bytes", "memory_available_bytes", "libstdcxx", "driver", "gpus", "toolkits"}
    assert set(facts.unknown) == missing | {"compilers"}
    assert all(facts.unknown.values())


# Driver and GPUs


@pytest.mark.parametrize(("text", "version"), [(OPEN_DRIVER, "580.95.05"), (CLOSED_DRIVER, "570.26"), ("", None)])
def test_driver_version(text: str, version: str | None) -> None:
    assert machine.parse_driver_version(text) == version


def test_gpus_as_nvidia_smi_says(tmp_path: Path) -> None:
    program(tmp_path / "bin/nvidia-smi", f"cat <<'END'\n{GPU_QUERY}END")
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    facts = machine.collect_facts(environment=environment, system=recorded_system(tmp_path))
    assert [gpu.uuid for gpu in facts.gpus] == ["GPU-aaaa", "GPU-bbbb"]
    assert [gpu.memory_bytes for gpu in facts.gpus] == [97887 * 1024**2, None]
    assert {gpu.compute_capability for gpu in facts.gpus} == {"12.0"}
    assert "gpus" not in facts.unknown


@pytest.mark.parametrize(
    ("nvidia_smi", "reason"),
    [
        ("", "nvidia-smi is not on PATH"),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "version mismatch"),
        ("echo 0, one, two", "gave 3 values"),
    ],
)
def test_gpus_without_nvidia_smi_come_from_proc(tmp_path: Path, nvidia_smi: str, reason: str) -> None:
    if nvidia_smi:
        program(tmp_path / "bin/nvidia-smi", nvidia_smi)
    facts = machine.collect_facts(environment={"PATH": f"{tmp_path}/bin:/usr/bin"}, system=recorded_system(tmp_path))
    assert [(gpu.index, gpu.uuid, gpu.pci_bus) for gpu in facts.gpus] == [
        (0, "GPU-aaaa", "0000:01:00.0"),
        (1, "GPU-bbbb", "0000:21:00.0"),
    ]
    assert facts.gpus[0].compute_capability is None
    assert reason in facts.unknown["gpus"]


# The basis of a plan


def test_basis_starts_one_program_at_most(tmp_path: Path) -> None:
    program(tmp_path / "bin/nvidia-smi", "exit 1")
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    asked: list[str] = []

    def runner(argv: Sequence[str], *, timeout: float = 10.0) -> Completed:
        asked.append(Path(argv[0]).name)
        return run_query(argv, timeout=timeout)

    basis = machine.plan_basis(environment=environment, system=recorded_system(tmp_path), runner=runner)
    assert asked == ["g++"]
    assert basis["driver"] == "580.95.05"
    assert basis["gpus"] == [
        "NVIDIA RTX PRO 6000 Blackwell Server Edition GPU-aaaa",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition GPU-bbbb",
    ]
    assert basis == json.loads(json.dumps(basis))


def test_basis_differences_are_sentences(tmp_path: Path) -> None:
    before = machine.plan_basis(system=recorded_system(tmp_path / "before"))
    after = machine.plan_basis(system=recorded_system(tmp_path / "after", CLOSED_DRIVER))
    assert machine.basis_differences(before, before) == ()
    assert machine.basis_differences(before, after) == ("the NVIDIA driver: 580.95.05 when planned, 570.26 now",)
    assert machine.basis_differences({"gcc": None, "gpus": []}, {"gcc": "13.1.0", "gpus": ["a", "b"]}) == (
        "g++: none when planned, 13.1.0 now",
        "the GPUs: none when planned, a, b now",
    )


def test_os_release_is_read_as_a_shell_would() -> None:
    text = '# comment\nNAME="Ubuntu"\nPRETTY_NAME=\'Ubuntu 24.04.1 LTS\'\nID=ubuntu\nBROKEN="x\nEMPTY=\n'
    expected = {"NAME": "Ubuntu", "PRETTY_NAME": "Ubuntu 24.04.1 LTS", "ID": "ubuntu", "EMPTY": ""}
    assert machine.parse_os_release(text) == expected


# Toolkits


def make_toolkit(home: Path, nvcc: str = "13.0.88", cudart: int = 13000, *, stated: bool = False) -> Path:
    """A toolkit's skeleton whose nvcc only says its version."""
    major, minor = nvcc.split(".")[:2]
    program(home / "bin/nvcc", f'echo "Cuda compilation tools, release {major}.{minor}, V{nvcc}"')
    (home / "bin/nvcc.profile").write_text("TOP = $(_HERE_)/..\n")
    (home / "include/crt").mkdir(parents=True)
    (home / "include/cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {cudart}\n")
    (home / "include/crt/host_config.h").write_text("#if defined(__GNUC__)\n#if __GNUC__ > 15\n#error\n#endif\n")
    (home / "lib64").mkdir()
    (home / "lib64/libcudart.so").touch()
    if stated:
        (home / "version.json").write_text(json.dumps({"cuda_nvcc": {"name": "CUDA NVCC", "version": nvcc}}))
    return home


def no_runner(argv: Sequence[str], *, timeout: float = 10.0) -> Completed:  # noqa: ARG001 (a runner's shape)
    raise AssertionError(f"{argv} was started")


def test_a_whole_toolkit(tmp_path: Path) -> None:
    home = make_toolkit(tmp_path / "cuda")
    facts = toolkit.read_toolkit(home, run_query)
    assert (facts.nvcc_version, facts.release, facts.name) == ("13.0.88", "13.0", "CUDA 13.0")
    assert (facts.header_version, facts.newest_gcc) == ("13.0", 15)
    assert facts.cudart == str(home / "lib64/libcudart.so")
    assert facts.unknown == {}
    assert toolkit.mix_problem(facts) == ""
    toolkit.require_matched(facts)


def test_a_real_toolkit_from_pypi() -> None:
    facts = toolkit.read_toolkit(toolkits().cuda_13_0, run_query)
    assert (facts.release, facts.header_version, facts.newest_gcc) == ("13.0", "13.0", 15)
    assert facts.newest_gcc == host_compiler.known_newest_gcc("13.0")
    assert facts.unknown == {}


def test_version_json_spares_starting_nvcc(tmp_path: Path) -> None:
    facts = toolkit.read_toolkit(make_toolkit(tmp_path / "cuda", stated=True), no_runner)
    assert facts.nvcc_version == "13.0.88"


def test_compiler_and_headers_of_different_releases_are_refused(tmp_path: Path) -> None:
    facts = toolkit.read_toolkit(make_toolkit(tmp_path / "cuda", nvcc="13.5.37"), run_query)
    assert "mixes nvcc 13.5.37 with headers of CUDA 13.0" in toolkit.mix_problem(facts)
    with pytest.raises(toolkit.ToolkitError, match=r"mixes nvcc 13\.5\.37") as caught:
        toolkit.require_matched(facts)
    assert "==13.5.*" in caught.value.remedy


def test_missing_parts_are_unknown_with_reasons(tmp_path: Path) -> None:
    program(tmp_path / "bin/nvcc", "echo broken >&2; exit 3")
    facts = toolkit.read_toolkit(tmp_path, run_query)
    assert (facts.nvcc_version, facts.header_version, facts.newest_gcc, facts.cudart) == (None,) * 4
    assert set(facts.unknown) == {"nvcc_version", "header_version", "newest_gcc", "cudart"}
    assert "exit code 3, it said: broken" in facts.unknown["nvcc_version"]
    assert facts.name == f"the toolkit in {tmp_path}"


@pytest.mark.parametrize("missing", ["nowhere", "."])
def test_what_is_no_toolkit_is_an_error_with_a_remedy(tmp_path: Path, missing: str) -> None:
    with pytest.raises(toolkit.ToolkitError) as caught:
        toolkit.read_toolkit(tmp_path / missing, run_query)
    assert isinstance(caught.value, CrossgradeError)
    assert "bin/nvcc" in caught.value.remedy


def test_toolkits_are_found_where_builds_look_and_listed_once(tmp_path: Path) -> None:
    local = tmp_path / "usr/local"
    older, newer = make_toolkit(local / "cuda-12.9", "12.9.86", 12090), make_toolkit(local / "cuda-13.0")
    (local / "cuda").symlink_to("cuda-13.0")
    script = program(tmp_path / "bin/nvcc", f'exec {older}/bin/nvcc "$@"')
    program(older / "bin/nvcc", f"echo '#$ _HERE_={older}/bin' >&2; echo 'release 12.9, V12.9.86'")
    environment = {"CUDA_HOME": str(local / "cuda"), "CUDA_PATH": "/nowhere", "PATH": str(script.parent)}
    found, problems = toolkit.find_toolkits(environment, run_query, system=tmp_path)
    assert [(facts.home, facts.release) for facts in found] == [
        (str(local / "cuda"), "13.0"),
        (str(older), "12.9"),
    ]
    assert found[0].real_home == str(newer)
    assert problems == ("CUDA_PATH=/nowhere: /nowhere is not a directory",)


@pytest.mark.parametrize(
    ("driver", "release", "fits", "words"),
    [
        ("570.26", "13.0", False, "needs 580 or newer"),
        ("580.65.06", "13.0", True, "runs CUDA 13.0"),
        ("580.65.06", "13.1", True, "can't compile its PTX"),
        ("535.104.05", "12.8", True, "older than 570.26"),
        ("595.10", "12.8", True, "runs CUDA 12.8"),
        ("580.65.06", "19.1", None, "is not known"),
        (None, "13.0", None, "no NVIDIA driver"),
    ],
)
def test_driver_against_release(driver: str | None, release: str, fits: bool | None, words: str) -> None:
    judgement = toolkit.judge_driver(driver, release)
    assert judgement.fits is fits
    assert words in judgement.message
    assert bool(judgement.remedy) is (fits is False)


# Host compilers


def gxx(version: str, command: str = "g++", *, cpp: bool | None = True) -> HostCompiler:
    return HostCompiler(command, f"/usr/bin/{command}", version, cpp)


def test_a_compiler_that_fits() -> None:
    judgement = judge_host_compiler(gxx("12.2.0"), 15, "CUDA 13.0")
    assert (judgement.fits, judgement.use, judgement.remedy) == (True, "/usr/bin/g++", "")


def test_a_compiler_that_is_too_new_and_an_older_one_beside_it() -> None:
    available = [
        gxx("16.1.0"),
        gxx("13.3.0", "g++-13"),
        gxx("14.2.0", "g++-14"),
        gxx("15.1.0", "g++-15", cpp=False),
    ]
    judgement = judge_host_compiler(available[0], 15, "CUDA 13.0", available)
    assert judgement.fits is False
    assert "gcc 16.1.0; nvcc of CUDA 13.0 takes gcc 15 at most" in judgement.message
    assert judgement.use == "/usr/bin/g++-14"
    assert "NVCC_CCBIN=/usr/bin/g++-14" in judgement.remedy


def test_a_compiler_that_is_too_new_alone() -> None:
    judgement = judge_host_compiler(gxx("16.1.0"), 14, "CUDA 12.8")
    assert (judgement.fits, judgement.use) == (False, "")
    assert "Install g++-14" in judgement.remedy


@pytest.mark.parametrize(
    ("compiler", "newest", "fits", "words"),
    [
        (None, 15, False, "there is none on PATH"),
        (gxx("12.2.0", cpp=False), 15, False, "cc1plus is not installed"),
        (gxx("12.2.0"), None, None, "the newest gcc for CUDA 13.9 is not known"),
        (HostCompiler("g++", "/usr/bin/g++", "", problem="it hangs"), 15, None, "it hangs"),
    ],
)
def test_compilers_that_cannot_be_judged_or_used(
    compiler: HostCompiler | None, newest: int | None, fits: bool | None, words: str
) -> None:
    judgement = judge_host_compiler(compiler, newest, "CUDA 13.9")
    assert judgement.fits is fits
    assert words in judgement.message
    assert judgement.remedy


def test_compilers_are_found_with_their_variants(tmp_path: Path) -> None:
    real = shutil.which("g++")
    assert real is not None
    (tmp_path / "g++").symlink_to(real)
    program(tmp_path / "g++-99", 'case "$1" in -print*) echo cc1plus;; *) echo 99.1.0;; esac')
    program(tmp_path / "gcc", "echo no idea; exit 4")
    program(tmp_path / "gcc-ar", "exit 1")
    found = {compiler.command: compiler for compiler in host_compiler.find_host_compilers(str(tmp_path), run_query)}
    assert set(found) == {"g++", "g++-99", "gcc"}
    assert (found["g++"].compiles_cpp, found["g++"].problem) == (True, "")
    assert (found["g++-99"].major, found["g++-99"].compiles_cpp) == (99, False)
    assert (found["gcc"].version, found["gcc"].major) == ("", None)
    assert "exit code 4, it said: no idea" in found["gcc"].problem


def test_known_limits() -> None:
    assert host_compiler.known_newest_gcc("13.0") == 15
    assert host_compiler.known_newest_gcc("13.4") is None


@pytest.mark.parametrize("name", ["drivers", "host_compilers"])
def test_each_row_of_the_tables_has_a_source(name: str) -> None:
    for row in table(name):
        assert isinstance(row["cuda"], str)
        assert isinstance(row["source"], str)
        assert row["source"]


# Questions to programs


def test_a_query_that_hangs_is_ended() -> None:
    answer = run_query(["sleep", "60"], timeout=0.1)
    assert (answer.timed_out, answer.succeeded) == (True, False)


def test_a_program_that_is_missing() -> None:
    with pytest.raises(StartError, match="cannot be started"):
        run_query(["/nowhere/program"])


def test_search_path_ignores_what_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/tool").write_text("")
    tool = program(tmp_path / "b/tool", "")
    assert programs_on_path(f":{tmp_path}/a:{tmp_path}/b", "tool") == (tool,)
