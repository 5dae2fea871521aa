"""Whether what a server compiles at its first use can be compiled for the GPU. Part of the architecture gate. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from crossgrade.facts.architectures import compiles_for, first_release_for
from crossgrade.gates.verdict import Finding, Level, Verdict, counted, joined
from crossgrade.inspect.gpu_architecture import parse_compute_capability
from crossgrade.inspect.jit_settings import ArchitectureList, Assembler, JitSettings
from crossgrade.inspect.toolkit_parts import ToolkitParts
from crossgrade.jsontype import JSON

# From this capability on, instructions of the GPU itself (wgmma, NVFP4) need the suffix a, or f.
_OWN_INSTRUCTIONS = (9, 0)


def with_jit_settings(verdict: Verdict, settings: JitSettings, compute_capability: str) -> Verdict:
    """The verdict of the architecture gate with what `judge_jit_settings` adds; a failure among it fails the gate."""
    findings = tuple(judge_jit_settings(settings, compute_capability))
    figures = {**verdict.figures, "jit": _figures(settings)}
    together = replace(verdict, findings=(*verdict.findings, *findings), figures=figures)
    failures = [finding for finding in findings if finding.level == "failure"]
    if not failures:
        return together
    if verdict.outcome == "failed":
        return replace(together, reason=f"{verdict.reason} (and {counted(len(failures), 'failure')} in JIT settings)")
    return replace(together, outcome="failed", reason=f"{failures[0].subject}: {failures[0].message}")


def judge_jit_settings(settings: JitSettings, compute_capability: str) -> Iterator[Finding]:
    """Findings on Triton's ptxas, the toolkit of CUDA_HOME, and lists of architectures.

    A ptxas or nvcc that does not know the GPU is a failure where a dist here compiles with it. An architecture without
    a suffix, where the dist takes it as it stands, is a warning: only kernels with the GPU's own instructions need it.
    """
    major, minor = parse_compute_capability(compute_capability)
    target = f"sm_{major}{minor}{'a' if (major, minor) >= _OWN_INSTRUCTIONS else ''}"
    if settings.assembler is not None:
        yield from _assembler(settings.assembler, target)
    asked = {name for each in settings.lists for name in each.architectures}
    if settings.nvcc is not None and settings.compilers and not asked:
        yield from _compiler(settings.nvcc, target, f"{joined(settings.compilers, 3)} ask for {target}")
    for each in settings.lists:
        yield from _listed(each, settings.nvcc, (major, minor))


def _assembler(found: Assembler, target: str) -> Iterator[Finding]:
    evidence: dict[str, JSON] = {"path": found.path, "version": found.version, "target": target}
    named = f" ({found.variable})" if found.variable else ""
    if found.version is None:
        message = (
            f"{found.triton} has no ptxas at {found.path} that states its release: whether it knows {target} is open"
        )
        yield Finding("warning", found.triton, message, evidence)
        return
    knows = compiles_for(target, _minor(found.version))
    whose = f"its ptxas {found.version}{named}"
    if knows is False:
        first = first_release_for(target)
        cure = f"one of CUDA {first} or newer" if first else "one that does"
        variable = found.variable or _variable_for(found.path)
        message = (
            f"{whose} does not know {target}: each Triton kernel stops with `ptxas fatal`. Name {cure} by {variable}, "
            "or install a newer triton"
        )
        yield Finding("failure", found.triton, message, evidence)
    elif knows is None:
        yield Finding("note", found.triton, f"whether {whose} knows {target} is not in the table", evidence)
    else:
        yield Finding("note", found.triton, f"{whose} knows {target}", evidence)


def _variable_for(path: str) -> str:
    return "TRITON_PTXAS_BLACKWELL_PATH" if path.endswith("-blackwell") else "TRITON_PTXAS_PATH"


def _compiler(nvcc: ToolkitParts, architecture: str, who: str) -> Iterator[Finding]:
    if nvcc.nvcc is None:
        return  # `cuda_check` names a toolkit without nvcc
    if compiles_for(architecture, _minor(nvcc.nvcc)) is False:
        first = first_release_for(architecture)
        needed = f"it needs CUDA {first} or newer" if first else "no release in the table does"
        message = (
            f"nvcc {nvcc.nvcc} does not compile for {architecture}, and {who}: {needed}. Set CUDA_HOME to such a one"
        )
        evidence: dict[str, JSON] = {"nvcc": nvcc.nvcc, "architecture": architecture}
        yield Finding("failure", nvcc.home, message, evidence)


def _listed(listed: ArchitectureList, nvcc: ToolkitParts | None, capability: tuple[int, int]) -> Iterator[Finding]:
    serving = []
    for name in listed.architectures:
        numbers = _numbers(name)
        if numbers is None:
            message = f"{listed.variable} has {name!r}, which is no architecture such as 12.0f"
            yield Finding("warning", listed.dist, message, {"variable": listed.variable})
            continue
        if nvcc is not None:
            architecture = f"sm_{numbers[0]}{numbers[1]}{_suffix(name)}"
            yield from _compiler(nvcc, architecture, f"{listed.variable} lists {name} for {listed.dist}")
        if numbers[0] == capability[0] and numbers[1] <= capability[1]:
            serving.append(name)
            if listed.takes_plain and not _suffix(name) and capability >= _OWN_INSTRUCTIONS:
                yield _plain(listed, name)
    if not serving:
        message = (
            f"{listed.variable} lists {joined(listed.architectures)}, none of which serves "
            f"{capability[0]}.{capability[1]}: what {listed.dist} compiles has no code for this GPU"
        )
        yield Finding("failure", listed.dist, message, {"variable": listed.variable})


def _plain(listed: ArchitectureList, name: str) -> Finding:
    level: Level = "warning"
    message = (
        f"{listed.variable} lists {name}, which {listed.dist} takes as it stands: kernels with instructions of the "
        f"GPU's own (NVFP4) do not compile. Write {name}a, or {name}f with CUDA 12.9 or newer"
    )
    return Finding(level, listed.dist, message, {"variable": listed.variable, "architecture": name})


def _numbers(name: str) -> tuple[int, int] | None:
    major, _, minor = name.rstrip("af").partition(".")
    if major.isdecimal() and minor.isdecimal() and len(name) < 8:
        return int(major), int(minor)
    return None


def _suffix(name: str) -> str:
    return name[-1] if name[-1] in "af" else ""


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _figures(settings: JitSettings) -> dict[str, JSON]:
    assembler = settings.assembler
    return {
        "ptxas": assembler.version if assembler else None,
        "ptxas_path": assembler.path if assembler else None,
        "nvcc": settings.nvcc.nvcc if settings.nvcc else None,
        "lists": {each.variable: list[JSON](each.architectures) for each in settings.lists},
    }
