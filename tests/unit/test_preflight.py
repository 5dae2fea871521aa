"""The preflight gate: each finding from facts, among them recorded ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossgrade.facts import gpus, holders, indexes, system, toolkits
from crossgrade.facts.architectures import compiles_for, first_release_for
from crossgrade.facts.compilers import CompilerFacts
from crossgrade.facts.gpus import Gpu, GpuFacts, GpuPair, PciLink
from crossgrade.gates.preflight import Observed, Target, judge_preflight
from crossgrade.gates.verdict import Verdict
from crossgrade.inspect.host_compiler import HostCompiler
from crossgrade.inspect.toolkit import ToolkitFacts
from crossgrade.knowledge import table

DATA = Path(__file__).parents[1] / "data" / "gpus"
VENV = "/srv/ml-env"
GIB = 1024**3


def rtx_pro_6000(count: int = 2) -> tuple[Gpu, ...]:
    """The recorded GPU at several addresses, with what the log does not name."""
    (gpu,) = gpus.parse_smi_log((DATA / "rtx_pro_6000_max_q_590.xml").read_text()).gpus
    link = replace(gpu.link, iommu="identity", redirecting_bridges=())
    return tuple(
        replace(gpu, index=n, minor=n, pci_bus=f"0000:{n + 1:02x}:00.0", compute_capability="12.0", link=link)
        for n in range(count)
    )


def sound_system(**changes: Any) -> system.SystemFacts:
    facts = system.SystemFacts(
        system="Ubuntu 24.04",
        system_id="ubuntu",
        system_version="24.04",
        kernel="6.8.0-85-generic",
        newest_kernel="6.8.0-85-generic",
        architecture="x86_64",
        glibc="2.39",
        libstdcxx="/usr/lib/libstdc++.so.6",
        glibcxx="3.4.33",
        cxxabi="1.3.15",
        processors=64,
        memory_bytes=512 * GIB,
        memory_available_bytes=400 * GIB,
        memory_limit_bytes=None,
        swap_bytes=0,
        shared_memory_bytes=256 * GIB,
        disks=(system.Disk("/srv", "/dev/nvme0n1", "ext4", 2000 * GIB, 500 * GIB, False, ("/srv/store",)),),
        reboot=(),
        iommu_parameters=("iommu=pt",),
        iommu_groups=40,
        cuda_driver_libraries=(),
        proxies={},
        variables={},
        inside="",
    )
    return replace(facts, **changes)


def toolkit_of(release: str, headers: str = "", origin: str = "/usr/local/cuda") -> toolkits.InstalledToolkit:
    home = f"/usr/local/cuda-{release}"
    limit = {"12.8": 14, "13.0": 15}[release]
    facts = ToolkitFacts(home, home, f"{home}/bin/nvcc", f"{release}.88", headers or release, limit, None)
    return toolkits.InstalledToolkit(facts, (origin,), "runfile")


def gcc(version: str) -> CompilerFacts:
    return CompilerFacts((HostCompiler("g++", "/usr/bin/g++", version, True),), "/usr/bin/g++")


def sound(**changes: Any) -> Observed:
    """A server on which every check passes."""
    cards = rtx_pro_6000()
    driver = GpuFacts(
        source="nvidia-smi",
        driver="580.95.05",
        kernel_module="580.95.05",
        kernel_module_kind="open",
        nvml_library="/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05",
        cuda="13.0",
        gpus=cards,
        pairs=(GpuPair(0, 1, "NODE", "OK"),),
    )
    server = holders.Holder(116860, 1000, "sglang", "its program lies there", (0, 1), "", "")
    observed = Observed(
        system=sound_system(),
        gpus=driver,
        toolkits=toolkits.ToolkitsFacts((toolkit_of("13.0"),), toolkits.LocalCuda("link", ("/usr/local/cuda-13.0",))),
        compilers=gcc("13.3.0"),
        holders=holders.HolderFacts((server,), 0),
        indexes=(indexes.IndexAnswer("https://pypi.org/simple/", 200),),
    )
    return replace(observed, **changes)


TARGET = Target("13.0", "12.0f", jobs=16, job_bytes=5_000_000_000, disk_bytes=12_000_000_000, place="/srv/store")


def judged(observed: Observed, target: Target = TARGET, **options: Any) -> Verdict:
    verdict = judge_preflight(observed, target, **options)
    assert Verdict.from_json(verdict.to_json()) == verdict
    return verdict


def findings(verdict: Verdict, check: str) -> list[tuple[str, str]]:
    return [(found.level, found.message) for found in verdict.findings if found.subject == check]


def with_gpus(*cards: Gpu, **changes: Any) -> Observed:
    return sound(gpus=replace(sound().gpus, gpus=cards, **changes))


def test_a_sound_server_passes_every_check() -> None:
    verdict = judged(sound())
    assert verdict.outcome == "passed", verdict.reason
    assert {found.level for found in verdict.findings} == {"note"}
    assert len(verdict.figures["passed"]) == 16  # type: ignore[arg-type]
    assert verdict.reason == "16 checks for CUDA 13.0, 0 failures"


CARDS = rtx_pro_6000()


def change_gpu(**changes: Any) -> Observed:
    return with_gpus(replace(CARDS[0], **changes), CARDS[1])


def change_link(**changes: Any) -> Observed:
    return change_gpu(link=replace(CARDS[0].link, **changes))


def change_driver(**changes: Any) -> Observed:
    return sound(gpus=replace(sound().gpus, **changes))


def change_system(**changes: Any) -> Observed:
    return sound(system=sound_system(**changes))


COMPAT = "/usr/local/cuda-13.0/compat/libcuda.so.590.44.01"
ELSEWHERE = system.CudaDriverLibrary("/x/libcuda.so.1", COMPAT, "590.44.01", "LD_LIBRARY_PATH")
OWN = system.CudaDriverLibrary("/y/libcuda.so.1", "/usr/lib/libcuda.so.580.95.05", "580.95.05", "ld.so.cache")
STRANGER = holders.Holder(77, 0, "python train.py", "", (1,), "train.service", "")


@pytest.mark.parametrize(
    ("check", "level", "words", "observed"),
    [
        ("driver", "failure", "570.26 is too old for CUDA 13.0", change_driver(kernel_module="570.26")),
        (
            "driver",
            "warning",
            "older than 580.65.06",
            change_driver(kernel_module="580.50", nvml_library="/usr/lib/libnvidia-ml.so.580.50"),
        ),
        (
            "driver_library",
            "failure",
            "module 580.95.05, NVML 580.178.04",
            change_driver(nvml_library="/usr/lib/libnvidia-ml.so.580.178.04"),
        ),
        (
            "driver_library",
            "failure",
            "NVML library version: 580.178",
            change_driver(
                nvml_library=None,
                unknown={"gpus": (DATA / "nvml_mismatch_580.txt").read_text().strip()},
            ),
        ),
        ("forward_compatibility", "failure", COMPAT, change_system(cuda_driver_libraries=(ELSEWHERE, OWN))),
        ("gpu_architecture", "warning", "the GPUs are of 9.0", with_gpus(replace(CARDS[0], compute_capability="9.0"))),
        ("gpus_free", "warning", "process 77 of train.service", sound(holders=holders.HolderFacts((STRANGER,), 0))),
        (
            "gpus_free",
            "failure",
            "GPU 0 is at 100% and no process holds it",
            replace(with_gpus(replace(CARDS[0], utilization=100, processes=())), holders=holders.HolderFacts((), 0)),
        ),
        (
            "gpus_free",
            "warning",
            "GPU 0 is at 100% and no process holds it",
            replace(
                with_gpus(replace(CARDS[0], utilization=100, processes=())),
                holders=holders.HolderFacts((), 0),
                system=sound_system(inside="docker"),
            ),
        ),
        ("gpus_free", "failure", "the driver says: Drain and Reset", change_gpu(recovery="Drain and Reset")),
        ("gpus_free", "warning", "GPU 0 is split", change_gpu(mig=True)),
        ("gpu_clocks", "warning", "hw_slowdown holds GPU 0 down", change_gpu(clock_reasons=("hw_slowdown",))),
        ("gpu_clocks", "warning", "persistence mode is off on GPU 0", change_gpu(persistence=False)),
        ("gpu_links", "warning", "has 4 of 16 PCIe lanes", change_link(width=4)),
        ("peer_access", "warning", "the IOMMU translates the addresses of 1 GPU", change_link(iommu="DMA-FQ")),
        ("peer_access", "warning", "between 1 pair of GPUs", change_driver(pairs=(GpuPair(0, 1, "PHB", "GNS"),))),
        (
            "peer_access",
            "warning",
            "forces peer access",
            change_driver(
                parameters=gpus.parse_parameters((DATA / "parameters_forced_peer_access.txt").read_text()),
            ),
        ),
        ("bridge_redirection", "warning", "at 1 bridge", change_link(redirecting_bridges=("0000:60:01.1",))),
        (
            "toolkit",
            "failure",
            "mixes nvcc 13.0.88 with headers of CUDA 13.5",
            sound(toolkits=toolkits.ToolkitsFacts((toolkit_of("13.0", "13.5"),), toolkits.LocalCuda("missing"))),
        ),
        (
            "toolkit",
            "warning",
            "takes CUDA 12.8 (CUDA_HOME",
            sound(
                toolkits=toolkits.ToolkitsFacts(
                    (toolkit_of("12.8", origin="CUDA_HOME"), toolkit_of("13.0")), toolkits.LocalCuda("missing")
                )
            ),
        ),
        (
            "toolkit",
            "warning",
            "leads to /opt/gone",
            sound(toolkits=toolkits.ToolkitsFacts((), toolkits.LocalCuda("dangling link", ("/opt/gone",), "somebody"))),
        ),
        ("host_compiler", "failure", "takes gcc 15 at most", sound(compilers=gcc("16.1.0"))),
        (
            "disk",
            "failure",
            "12.0 GB needed",
            change_system(disks=(replace(sound_system().disks[0], free_bytes=10**9),)),
        ),
        ("disk", "failure", "read-only", change_system(disks=(replace(sound_system().disks[0], read_only=True),))),
        ("memory", "failure", "MAX_JOBS=8", change_system(memory_available_bytes=42_000_000_000)),
        ("memory", "failure", "MAX_JOBS=2", change_system(memory_limit_bytes=10_000_000_000)),
        ("reboot", "warning", "kernel 6.8.0-90", change_system(reboot=("kernel 6.8.0-90-generic is installed",))),
        ("reboot", "warning", "module 580.105 is on disk", change_driver(installed_module="580.105")),
        ("proxies", "warning", "no_proxy lacks localhost", change_system(proxies={"http_proxy": "http://p:3128"})),
        (
            "indexes",
            "failure",
            "cannot be reached: timed out",
            sound(indexes=(indexes.IndexAnswer("https://pypi.org/simple/", None, "timed out"),)),
        ),
        ("indexes", "failure", "wants a name", sound(indexes=(indexes.IndexAnswer("https://index/", 401),))),
        ("indexes", "failure", "answers 503", sound(indexes=(indexes.IndexAnswer("https://index/", 503),))),
    ],
)
def test_what_stands_in_the_way(check: str, level: str, words: str, observed: Observed) -> None:
    verdict = judged(observed)
    assert any(words in message for found, message in findings(verdict, check) if found == level), verdict.findings
    assert verdict.outcome == ("failed" if level == "failure" else "passed"), verdict.reason
    remedies = [found.evidence.get("remedy") for found in verdict.findings if found.level == level]
    assert all(remedies) or words in ("GPU 0 is split", "between 1 pair of GPUs")


@pytest.mark.parametrize(
    ("check", "why", "observed"),
    [
        ("driver", "no NVIDIA driver", sound(gpus=GpuFacts(unknown={"gpus": "no NVIDIA driver on this machine"}))),
        (
            "gpu_architecture",
            "capability is not known",
            change_driver(gpus=(replace(CARDS[0], compute_capability=None),)),
        ),
        ("gpus_free", "3 could not", with_gpus(replace(CARDS[0], processes=None))),
        ("gpu_clocks", "does not say", change_driver(gpus=(replace(CARDS[0], clock_reasons=None),))),
        ("gpu_links", "not known", change_driver(gpus=(replace(CARDS[0], link=PciLink()),))),
        ("peer_access", "topo failed", change_driver(pairs=(), unknown={"pairs": "topo failed"})),
        ("bridge_redirection", "cannot be read", change_link(redirecting_bridges=None)),
        ("host_compiler", "cannot be told", sound(compilers=gcc(""))),
        (
            "disk",
            "/proc/mounts names nothing",
            change_system(disks=(), unknown={"disks": "/proc/mounts names nothing"}),
        ),
        (
            "memory",
            "states no",
            change_system(memory_available_bytes=None, unknown={"memory_available_bytes": "states no"}),
        ),
        ("indexes", "`online: false`", sound(indexes=None, no_indexes="`online: false`")),
    ],
)
def test_what_could_not_run_never_passes(check: str, why: str, observed: Observed) -> None:
    if check == "gpus_free":
        observed = replace(observed, holders=holders.HolderFacts((), 3, {"holders": "3 could not be looked into"}))
    verdict = judged(observed)
    assert verdict.outcome == "not run", verdict.findings
    found = findings(verdict, check)
    assert any(level == "warning" and message.startswith("not run: ") and why in message for level, message in found)
    assert check in verdict.figures["not_run"]  # type: ignore[operator]


def test_the_target_s_own_limits() -> None:
    too_old = judged(sound(), replace(TARGET, cuda="12.8"))
    assert "the build for 12.0f needs nvcc 12.9 or newer for sm_120f" in too_old.reason
    assert judged(sound(), replace(TARGET, cuda="12.8", gpu="12.0a")).outcome == "passed"
    assert "needs nvcc 12.8 or newer for sm_120" in judged(sound(), replace(TARGET, cuda="12.6")).reason
    volta = with_gpus(replace(CARDS[0], compute_capability="7.0"))
    assert "does not compile for sm_70 any more" in judged(volta).reason


def test_nothing_is_said_of_a_build_that_is_not() -> None:
    verdict = judged(sound(compilers=gcc("16.1.0")), replace(TARGET, jobs=0, gpu=""))
    assert verdict.outcome == "passed"
    assert {found.subject for found in verdict.findings}.isdisjoint({"memory", "host_compiler"})


def test_everything_at_once_and_what_is_ignored() -> None:
    observed = replace(change_system(memory_available_bytes=10**9), compilers=gcc("16.1.0"), indexes=None)
    verdict = judged(observed)
    assert (verdict.outcome, verdict.figures["failure"]) == ("failed", ["host_compiler", "memory"])
    assert verdict.reason.endswith("(and 1 more failure)")
    ignoring = judged(observed, ignore=["mem*", "host_compiler"])
    assert (ignoring.outcome, ignoring.figures["ignored"]) == ("not run", ["host_compiler", "memory"])
    assert judged(observed, ignore=["*"]).outcome == "passed"
    assert "(ignored by 'mem*')" in findings(ignoring, "memory")[0][1]


def test_an_installed_toolkit_s_own_limit_counts() -> None:
    facts = replace(toolkit_of("13.0").facts, newest_gcc=12)
    own = toolkits.InstalledToolkit(facts, ("/usr/local/cuda",), "")
    verdict = judged(sound(toolkits=toolkits.ToolkitsFacts((own,), toolkits.LocalCuda("missing"))))
    assert "takes gcc 12 at most" in verdict.reason
    (found,) = [each for each in verdict.findings if each.subject == "host_compiler"]
    assert found.evidence["limit_from"] == "/usr/local/cuda-13.0/include/crt/host_config.h"


@pytest.mark.parametrize(
    ("architecture", "release", "expected"),
    [
        ("sm_120", "12.8", True),
        ("sm_120f", "12.8", False),
        ("sm_120f", "12.9", True),
        ("sm_120", "12.4", False),  # 12.0 and 12.6 agree
        ("sm_120", "12.7", None),  # 12.6 and 12.8 do not
        ("sm_90", "11.4", None),
        ("sm_70", "13.0", False),
        ("sm_120", "13.9", True),
        ("sm_999", "13.9", None),
        ("sm_120", "14.0", None),
    ],
)
def test_which_release_compiles_for_what(architecture: str, release: str, expected: bool | None) -> None:
    assert compiles_for(architecture, release) is expected


def test_the_tables_name_their_sources() -> None:
    assert first_release_for("sm_120f") == "12.9"
    assert first_release_for("sm_999") is None
    for name in ("ptxas_architectures", "peer_settings", "build_memory"):
        assert all(row["source"] for row in table(name))
