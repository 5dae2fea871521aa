"""What the architecture gate says, as sentences for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from crossgrade.gates.verdict import counted, joined
from crossgrade.inspect.device_packages import DeviceFile, KernelSources
from crossgrade.inspect.gpu_architecture import DeviceCode, jit_ptx, unit_coverage
from crossgrade.inspect.ptx import compiles, ptx_need
from crossgrade.jsontype import JSON

NO_DRIVER = "whether the driver does is not judged: no driver here"


def evidence(code: DeviceCode) -> dict[str, JSON]:
    """What a file holds, in numbers; ``embedded`` is what stands in its ordinary data."""
    return {
        "holds": list(code.names),
        "images": [
            {"name": image.name, "count": image.count, "bytes": image.payload_bytes, "ptx": image.ptx_version}
            for image in (*code.images, *code.embedded)
        ],
        "embedded": sum(image.count for image in code.embedded),
    }


def no_code(code: DeviceCode, target: str) -> str:
    """A module that does not run."""
    return f"holds no device code that runs on {target}: it holds {joined(code.names)}"


def jit_only(code: DeviceCode, capability: tuple[int, int], driver: str | None) -> tuple[str, bool | None]:
    """A module that the driver must compile, and whether ``driver`` does: None where that is not known."""
    versions = [version for version, _ in jit_ptx(code, capability)]
    needs = joined([ptx_need(version).words for version in versions]) or "a driver that knows this PTX"
    how = (
        "the library has it compiled when it needs it, which"
        if code.embedded
        else "the driver compiles it at the first start (JIT), which takes minutes for large libraries and"
    )
    message = f"holds no machine code for {target_of(capability)}, only PTX ({joined(code.names)}): {how} needs {needs}"
    fits = _fits(driver, versions)
    if driver is None:
        message += f"; {NO_DRIVER}"
    elif fits is None:
        message += f"; whether driver {driver} does is not known"
    else:
        message += f"; driver {driver} compiles it" if fits else f"; driver {driver} does not compile it"
    return message, fits


def partly_jit(code: DeviceCode, capability: tuple[int, int], driver: str | None) -> str:
    """Say so where parts of a file rely on PTX that the driver is known not to compile; else nothing."""
    lacking = [
        (version, n) for version, n in jit_ptx(code, capability) if driver and compiles(driver, version) is False
    ]
    if not lacking:
        return ""
    total = sum(count for _, count in code.units)
    needs = joined([ptx_need(version).words for version, _ in lacking])
    return (
        f"{sum(count for _, count in lacking)} of its {counted(total, 'translation unit')} hold only PTX, which "
        f"needs {needs}; driver {driver} does not compile it"
    )


def _fits(driver: str | None, versions: Sequence[str]) -> bool | None:
    """Whether a driver compiles PTX of all versions; None where that is not known."""
    if driver is None or not versions:
        return None
    answers = {compiles(driver, version) for version in versions}
    return False if False in answers else None if None in answers else True


def target_of(capability: tuple[int, int]) -> str:
    """(12, 0) as ``sm_120``."""
    return f"sm_{capability[0]}{capability[1]}"


def _short(paths: Iterable[str]) -> dict[str, str]:
    """Each path by its name, or by its folder too where two files have one name."""
    parts = {path: PurePosixPath(path).parts for path in paths}
    names = Counter(part[-1] for part in parts.values())
    return {path: "/".join(part[-1:] if names[part[-1]] == 1 else part[-2:]) for path, part in parts.items()}


def falls_away(lacking: Mapping[str, Sequence[str]], native: int, modules: int, target: str) -> str:
    """The modules of a dist that do not run, where others of it do."""
    short = _short(lacking)
    said = joined((f"{short[path]} ({joined(names)})" for path, names in lacking.items()), 6)
    return f"runs on {target} with {native} of its {counted(modules, 'module')}. What needs the others does not: {said}"


def by_ptx(lacking: Mapping[str, Sequence[str]], native: int, modules: int, target: str) -> str:
    """The modules of a dist that the driver must compile, where others run as they are."""
    said = joined(_short(lacking).values(), 6)
    return (
        f"runs natively on {target} with {native} of its {counted(modules, 'module')}. Of others the driver compiles "
        f"the PTX at the first start (JIT): {said}"
    )


def partial(code: DeviceCode, capability: tuple[int, int]) -> str:
    """Say so where parts of a file are only for other GPUs, as is normal for hand-tuned kernels; else nothing."""
    total = sum(count for _, count in code.units)
    missing = [(names, n) for names, n in code.units if unit_coverage(code, names, capability) == "none"]
    if not missing:
        return ""
    number = sum(count for _, count in missing)
    held = joined(dict.fromkeys(name for names, _ in missing for name in names))
    return f"{number} of its {counted(total, 'translation unit')} hold nothing for {target_of(capability)}, only {held}"


def for_other_gpus(lacking: int, total: int, held: Sequence[str], target: str) -> str:
    """Cubins and the like that a program chooses by name."""
    several = "" if lacking == total else f"of its {total:,} "
    return (
        f"{several}{counted(lacking, 'file')} of device code (cubins, PTX) hold nothing for {target}, only "
        f"{joined(held)}: what chooses them does not run on it"
    )


def for_links(archives: Sequence[DeviceFile]) -> str:
    """Static archives: no process loads them."""
    names = dict.fromkeys(name for archive in archives for name in (archive.code.relocatable if archive.code else ()))
    said = joined(_short(archive.path for archive in archives).values())
    return f"static: {said} ({joined(names, 12)}) counts only for what is linked with it"


def built_at_first_use(source: KernelSources, compilers: Sequence[str], target: str) -> str:
    """A dist that compiles its sources while it runs."""
    by = joined(source.builders)
    means = ""
    if any(builder.startswith("nvcc") for builder in source.builders):
        found = joined(compilers) or "the one that CUDA_HOME or PATH names: there is none in the environment"
        means = f" (nvcc: {found})"
    named = f"; the code that builds them mentions {joined(source.architectures, 12)}" if source.architectures else ""
    kinds = counted(source.files, "CUDA source")
    return f"{kinds} built at first use, by {by}{means}{named}. Whether they compile for {target} shows only then"
