"""The rules by which device code runs on a compute capability, and the gate that applies them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from crossgrade.errors import WrongOptionsError
from crossgrade.gates.gpu_arch import judge_gpu_arch
from crossgrade.gates.verdict import Finding, Verdict
from crossgrade.inspect.device_packages import DevicePackages, KernelSources
from crossgrade.inspect.gpu_architecture import (
    DeviceCode,
    DeviceImage,
    coverage,
    parse_compute_capability,
    runs,
)
from crossgrade.inspect.native import NativeFile, NativeReport
from crossgrade.jsontype import JSON


@pytest.mark.parametrize(
    ("image", "capability", "expected"),
    [
        ("sm_120", "12.0", "native"),
        ("sm_120", "12.1", "native"),  # same major, newer minor
        ("sm_121", "12.0", "none"),
        ("sm_100", "12.0", "none"),
        ("sm_90", "12.0", "none"),
        ("sm_80", "8.6", "native"),
        ("sm_86", "8.0", "none"),
        ("sm_120a", "12.0", "native"),
        ("sm_120a", "12.1", "none"),
        ("sm_90a", "9.0", "native"),
        ("sm_120f", "12.0", "native"),
        ("sm_120f", "12.1", "native"),
        ("sm_121f", "12.0", "none"),
        ("sm_100f", "10.3", "native"),
        ("sm_100f", "10.1", "none"),  # another family within the same major
        ("sm_100f", "12.0", "none"),
        ("sm_101f", "11.0", "native"),  # Thor, renamed by CUDA 13
        ("compute_90", "12.0", "jit"),
        ("compute_120", "12.0", "jit"),
        ("compute_121", "12.0", "none"),
        ("compute_90a", "12.0", "none"),
        ("compute_120a", "12.0", "jit"),
        ("compute_120f", "12.1", "jit"),
        ("compute_100f", "12.0", "none"),
        ("lto_120", "12.0", "none"),
        ("kind64_120", "12.0", "none"),
    ],
)
def test_rules(image: str, capability: str, expected: str) -> None:
    found = image_of(image)
    assert runs(found.kind, found.architecture, found.variant, parse_compute_capability(capability)) == expected


def image_of(name: str) -> DeviceImage:
    prefix, _, number = name.partition("_")
    kind = {"sm": "sass", "compute": "ptx"}.get(prefix, prefix)
    digits = number.rstrip("af")
    return DeviceImage(name, kind, int(digits), number[len(digits) :], "", None, 1, 100)


def code_of(*units: str) -> DeviceCode:
    """One unit for each argument: names with a space between."""
    names = dict.fromkeys(name for unit in units for name in unit.split())
    return DeviceCode(tuple(map(image_of, names)), tuple((tuple(unit.split()), 1) for unit in units))


def report_with(**files: DeviceCode | None) -> NativeReport:
    found = tuple(
        NativeFile(f"pkg/{name}.so", "library", "x86_64", 1000, device_code=code) for name, code in files.items()
    )
    return NativeReport("/env", "x86_64", "2.36", None, (), (), (), found, 0.0)


@pytest.mark.parametrize("text", ["12.0", "sm_120", "120", "sm_120a", "compute_120f"])
def test_spellings_of_a_capability(text: str) -> None:
    assert parse_compute_capability(text) == (12, 0)


@pytest.mark.parametrize("text", ["", "twelve", "12.", ".0", "sm_", "-12.0", "1²0"])
def test_what_is_no_capability(text: str) -> None:
    with pytest.raises(WrongOptionsError, match="not a compute capability"):
        parse_compute_capability(text)


def test_a_file_is_as_good_as_its_best_unit() -> None:
    assert coverage(code_of("sm_90 compute_90", "sm_90a"), (12, 0)) == "jit"
    assert coverage(code_of("sm_90a", "sm_90 sm_120"), (12, 0)) == "native"
    assert coverage(code_of("sm_90a"), (12, 0)) == "none"


def test_failing_names_the_architecture_the_file_and_what_it_holds() -> None:
    verdict = judge_gpu_arch(report_with(kernels=code_of("sm_90"), plain=None))
    assert verdict.outcome == "failed"
    assert verdict.reason.startswith("pkg/kernels.so: holds no device code that runs on sm_120: it holds sm_90.")
    assert verdict.figures["architectures"] == {"pkg/kernels.so": ["sm_90"]}


def test_ptx_alone_fails_unless_allowed() -> None:
    report = report_with(kernels=code_of("sm_90 compute_90"))
    assert judge_gpu_arch(report).outcome == "failed"
    allowed = judge_gpu_arch(report, allow_ptx=True)
    assert allowed.outcome == "passed"
    assert "JIT" in allowed.of_level("warning")[0].message


def of_dist(report: NativeReport, dist: str, *kinds: str) -> NativeReport:
    """The same with all files in one dist, their kinds in turn."""
    chosen = kinds or ("library",) * len(report.files)
    files = tuple(replace(file, dist=dist, kind=kind) for file, kind in zip(report.files, chosen, strict=True))
    return replace(report, files=files)


def verdict_of(verdict: Verdict, dist: str) -> JSON:
    dists = verdict.figures["dists"]
    assert isinstance(dists, dict)
    row = dists[dist]
    assert isinstance(row, dict)
    return row["verdict"]


def test_a_dist_is_one_answer_and_what_falls_away_is_named() -> None:
    report = of_dist(report_with(common=code_of("sm_120a"), flash=code_of("sm_90a", "sm_80")), "kernels 1.0")
    verdict = judge_gpu_arch(report)
    assert verdict.outcome == "passed"
    (warning,) = verdict.of_level("warning")
    assert warning.subject == "kernels 1.0"
    assert "1 of its 2 modules" in warning.message
    assert "flash.so (sm_80, sm_90a)" in warning.message
    assert verdict_of(verdict, "kernels 1.0") == "covers in some modules"
    named = judge_gpu_arch(report, require=["*/flash.so"])
    assert named.outcome == "failed"
    assert named.reason.startswith("pkg/flash.so: holds no device code that runs on sm_120")


def test_a_dist_without_any_code_for_the_gpu_fails() -> None:
    report = of_dist(report_with(common=code_of("sm_90a"), flash=code_of("sm_80")), "kernels 1.0")
    verdict = judge_gpu_arch(report)
    assert verdict.outcome == "failed"
    assert len(verdict.of_level("failure")) == 2
    assert verdict_of(verdict, "kernels 1.0") == "does not cover"
    # That another dist covers the GPU is no excuse.
    other = of_dist(report_with(other=code_of("sm_120")), "other 1.0")
    assert judge_gpu_arch(replace(report, files=report.files + other.files)).outcome == "failed"


def test_ptx_of_a_dist_that_runs_natively_is_a_warning() -> None:
    report = of_dist(report_with(common=code_of("sm_120"), small=code_of("compute_80")), "kernels 1.0")
    verdict = judge_gpu_arch(report)
    assert verdict.outcome == "passed"
    assert "compiles the PTX" in verdict.of_level("warning")[0].message
    alone = of_dist(report_with(small=code_of("compute_80"), old=code_of("sm_70")), "kernels 1.0")
    assert verdict_of(judge_gpu_arch(alone), "kernels 1.0") == "by PTX only"
    assert judge_gpu_arch(alone).outcome == "failed"
    assert judge_gpu_arch(alone, allow_ptx=True).outcome == "passed"


def test_loose_cubins_are_counted_by_architecture_and_never_fail() -> None:
    report = of_dist(
        report_with(a=code_of("sm_100f"), b=code_of("sm_100f"), c=code_of("sm_103a")), "cubins 1", *["cubin"] * 3
    )
    verdict = judge_gpu_arch(report)
    assert verdict.outcome == "passed"
    (warning,) = verdict.of_level("warning")
    assert warning.subject == "cubins 1"
    assert "3 files of device code" in warning.message
    dists = verdict.figures["dists"]
    assert isinstance(dists, dict)
    assert dists["cubins 1"] == {
        "verdict": "does not cover", "holds": ["sm_100f", "sm_103a"], "files": 3, "loose": {"sm_100f": 2, "sm_103a": 1},
    }  # fmt: skip
    assert verdict.figures["architectures"] == {}
    assert judge_gpu_arch(report, "10.3").of_level("warning") == ()


def test_what_a_server_does_without_is_a_warning_unless_it_is_required() -> None:
    file = NativeFile("deep_ep/_C.so", "library", "x86_64", 1000, "sgl-deep-ep 1", device_code=code_of("sm_90"))
    report = replace(report_with(), files=(file,))
    verdict = judge_gpu_arch(report)
    assert verdict.outcome == "passed"
    assert "expert parallelism" in verdict.of_level("warning")[0].message
    assert judge_gpu_arch(report, require=["deep_ep/*"]).outcome == "failed"


def test_a_dist_that_is_built_at_first_use() -> None:
    packages = DevicePackages((), (KernelSources("jit 1.0", 3, ("nvcc",), ("90a", "120f")),), ("bin/nvcc",))
    nothing = judge_gpu_arch(report_with(plain=None), packages=packages)
    assert nothing.outcome == "not run"
    assert "1 dist built at first use" in nothing.reason
    verdict = judge_gpu_arch(report_with(good=code_of("sm_120")), packages=packages)
    assert verdict_of(verdict, "jit 1.0") == "built at first use"
    (note,) = verdict.of_level("note")
    assert "3 CUDA sources built at first use, by nvcc (nvcc: bin/nvcc)" in note.message
    assert "90a, 120f" in note.message


def test_code_in_ordinary_data_counts() -> None:
    code = DeviceCode((image_of("sm_75"),), ((("sm_120",), 4),), embedded=(image_of("sm_120"),))
    assert coverage(code, (12, 0)) == "native"
    assert coverage(code, (9, 0)) == "none"


def test_only_required_files_can_fail() -> None:
    report = report_with(needed=code_of("sm_120"), other=code_of("sm_90"))
    assert judge_gpu_arch(report).outcome == "failed"
    verdict = judge_gpu_arch(report, require=["pkg/needed*"])
    assert verdict.outcome == "passed"
    assert verdict.of_level("note")[0].subject == "pkg/other.so"
    missing = judge_gpu_arch(report, require=["pkg/needed*", "gone/*"])
    assert missing.outcome == "failed"
    assert missing.reason.startswith("gone/*: no file with device code matches")


def test_units_for_other_gpus_are_noted() -> None:
    verdict = judge_gpu_arch(report_with(kernels=code_of("sm_120", "sm_90a", "sm_100a")))
    assert verdict.outcome == "passed"
    message = verdict.of_level("note")[0].message
    assert message == "2 of its 3 translation units hold nothing for sm_120, only sm_90a, sm_100a"


def test_without_device_code_the_gate_did_not_run() -> None:
    verdict = judge_gpu_arch(report_with(plain=None, empty=DeviceCode((image_of("sm_90"),), ())))
    assert verdict.outcome == "not run"
    assert not verdict.passed
    assert verdict.reason == "none of 2 native files holds device code: nothing to judge"


def test_a_verdict_survives_json() -> None:
    verdict = judge_gpu_arch(report_with(kernels=code_of("sm_120", "sm_90a"), old=code_of("sm_90")))
    assert Verdict.from_json(verdict.to_json()) == verdict
    whole = verdict.to_json()
    changes: list[dict[str, JSON]] = [{"outcome": "fine"}, {"findings": [1]}, {"gate": None}, {"figures": 1}]
    for change in changes:
        broken = {**whole, **change}
        with pytest.raises(ValueError, match=r"must be|is none of"):
            Verdict.from_json(broken)
    with pytest.raises(ValueError, match="is none of"):
        Finding.from_json({"level": "bad", "subject": "a", "message": "b"})
