"""The architecture gate: does each file with device code run on this GPU?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatch

from crossgrade.gates.verdict import Finding, Level, Verdict, counted, joined
from crossgrade.inspect.gpu_architecture import (
    DeviceCode,
    coverage,
    jit_ptx,
    parse_compute_capability,
    unit_coverage,
)
from crossgrade.inspect.native import NativeFile, NativeReport
from crossgrade.inspect.ptx import compiles, ptx_need
from crossgrade.jsontype import JSON

GATE = "gpu_arch"
NO_DRIVER = "whether the driver does is not judged: no driver here"


def judge_gpu_arch(
    report: NativeReport,
    compute_capability: str = "12.0",
    *,
    require: Sequence[str] | None = None,
    allow_ptx: bool = False,
    driver: str | None = None,
) -> Verdict:
    """Judge the device code of every file for one compute capability.

    ``require`` limits what can fail the gate to files that match one of these globs (paths relative to the
    environment, ``*`` also matches ``/``); a glob that no file with device code matches fails it as well. By
    default every file counts. With ``allow_ptx`` code that the driver must compile at the first start is only
    warned about; where ``driver`` (``580.95.05``) does not know that PTX, it is a failure all the same, and None says
    that there is none to judge. Raises `WrongOptionsError` for a text that is no compute capability.
    """
    capability = parse_compute_capability(compute_capability)
    target = f"sm_{capability[0]}{capability[1]}"
    findings: list[Finding] = []
    counts = {"native": 0, "jit": 0, "none": 0}
    holding: list[NativeFile] = []
    for file in report.files:
        required = require is None or _matches(file.path, require)
        if file.unreadable:
            if required:
                findings.append(Finding("failure", file.path, f"cannot be read: {file.unreadable}"))
            continue
        if file.device_code is None or not file.device_code.images:
            continue
        if not file.device_code.units:
            message = f"its device code ({joined(file.device_code.names)}) holds no function: nothing to run"
            findings.append(Finding("note", file.path, message))
            continue
        holding.append(file)
        verdict = coverage(file.device_code, capability)
        counts[verdict] += 1
        level: Level = "failure" if required else "note"
        if verdict == "none":
            findings.append(_no_code(file, file.device_code, target, level))
        elif verdict == "jit":
            findings.append(_jit_only(file, file.device_code, capability, driver, level, allow_ptx=allow_ptx))
        else:
            findings.extend(_partial(file, file.device_code, capability, target))
            findings.extend(_partly_jit(file, file.device_code, capability, driver))
    for pattern in require or ():
        if not any(_matches(file.path, [pattern]) for file in holding):
            message = "no file with device code matches this pattern, which the playbook requires"
            findings.append(Finding("failure", pattern, message))
    figures: dict[str, JSON] = {
        "compute_capability": f"{capability[0]}.{capability[1]}",
        "files_with_device_code": len(holding),
        "native": counts["native"],
        "jit": counts["jit"],
        "none": counts["none"],
        "driver": driver,
        "architectures": {file.path: list(file.device_code.names) for file in holding if file.device_code},
    }
    failures = [finding for finding in findings if finding.level == "failure"]
    if failures:
        first = failures[0]
        more = f" (and {counted(len(failures) - 1, 'more failure')})" if len(failures) > 1 else ""
        reason = f"{first.subject}: {first.message}{more}"
        return Verdict(GATE, "failed", reason, tuple(findings), figures)
    if not holding:
        reason = f"none of {counted(len(report.files), 'native file')} holds device code: nothing to judge"
        return Verdict(GATE, "not run", reason, tuple(findings), figures)
    reason = f"{counts['native']} of {counted(len(holding), 'file')} with device code run natively on {target}"
    if counts["jit"]:
        reason += f", {counts['jit']} only after the driver compiled their PTX"
        reason += "" if driver else " (not judged: no driver here)"
    if counts["none"]:
        reason += f", {counts['none']} not at all (not required by the playbook)"
    return Verdict(GATE, "passed", reason, tuple(findings), figures)


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns)


def _held(code: DeviceCode) -> dict[str, JSON]:
    return {
        "holds": list(code.names),
        "images": [
            {"name": image.name, "count": image.count, "bytes": image.payload_bytes, "ptx": image.ptx_version}
            for image in code.images
        ],
    }


def _no_code(file: NativeFile, code: DeviceCode, target: str, level: Level) -> Finding:
    message = (
        f"holds no device code that runs on {target}: it holds {joined(code.names)}. "
        f"Rebuild it for {target}, or install a build that has it"
    )
    return Finding(level, file.path, message, _held(code))


def _jit_only(
    file: NativeFile,
    code: DeviceCode,
    capability: tuple[int, int],
    driver: str | None,
    level: Level,
    *,
    allow_ptx: bool,
) -> Finding:
    versions = [version for version, _ in jit_ptx(code, capability)]
    needs = joined([ptx_need(version).words for version in versions]) or "a driver that knows this PTX"
    message = (
        f"holds no machine code for sm_{capability[0]}{capability[1]}, only PTX ({joined(code.names)}): the driver "
        f"compiles it at the first start (JIT), which takes minutes for large libraries and needs {needs}"
    )
    fits = _fits(driver, versions)
    if driver is None:
        message += f"; {NO_DRIVER}"
    elif fits is None:
        message += f"; whether driver {driver} does is not known"
    else:
        message += f"; driver {driver} compiles it" if fits else f"; driver {driver} does not compile it"
    lenient: Level = "warning" if level == "failure" and allow_ptx and fits is not False else level
    return Finding(lenient, file.path, message, {**_held(code), "needs_ptx": list[JSON](versions), "driver": driver})


def _partly_jit(
    file: NativeFile, code: DeviceCode, capability: tuple[int, int], driver: str | None
) -> Iterator[Finding]:
    """Say so where parts of a file rely on PTX that the driver is known not to compile."""
    lacking = [
        (version, n) for version, n in jit_ptx(code, capability) if driver and compiles(driver, version) is False
    ]
    if lacking:
        total = sum(count for _, count in code.units)
        needs = joined([ptx_need(version).words for version, _ in lacking])
        message = (
            f"{sum(count for _, count in lacking)} of its {counted(total, 'translation unit')} hold only PTX, which "
            f"needs {needs}; driver {driver} does not compile it"
        )
        yield Finding("warning", file.path, message, {**_held(code), "driver": driver})


def _fits(driver: str | None, versions: Sequence[str]) -> bool | None:
    """Whether a driver compiles PTX of all versions; None where that is not known."""
    if driver is None or not versions:
        return None
    answers = {compiles(driver, version) for version in versions}
    return False if False in answers else None if None in answers else True


def _partial(file: NativeFile, code: DeviceCode, capability: tuple[int, int], target: str) -> list[Finding]:
    """Say so where parts of a file are only for other GPUs, as is normal for hand-tuned kernels."""
    total = sum(count for _, count in code.units)
    lacking = [(names, n) for names, n in code.units if unit_coverage(code, names, capability) == "none"]
    if not lacking:
        return []
    number = sum(count for _, count in lacking)
    held = joined(dict.fromkeys(name for names, _ in lacking for name in names))
    message = f"{number} of its {counted(total, 'translation unit')} hold nothing for {target}, only {held}"
    return [Finding("note", file.path, message, _held(code))]
