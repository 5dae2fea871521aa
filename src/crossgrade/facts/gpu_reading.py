"""Asking for GPUs: NVML, else nvidia-smi, else the driver's /proc, else sysfs. Everything here only reads."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from crossgrade.facts.gpus import (
    Gpu,
    GpuFacts,
    PciLink,
    bus_address,
    link_generation,
    nvml_mismatch,
    pairs_of,
    parse_kernel_module,
    parse_matrix,
    parse_parameters,
    parse_smi_log,
    redirects,
    with_links,
)
from crossgrade.facts.nvml import parse_answer
from crossgrade.facts.text import is_there, lines_of, text_of
from crossgrade.inspect.machine import NO_DRIVER, parse_gpu_information, parse_gpu_query
from crossgrade.inspect.query import Runner, programs_on_path
from crossgrade.process import Completed, StartError

# The first program that asks wakes every GPU, which takes seconds each where persistence mode is off.
DRIVER_SECONDS = 60.0
MODINFO_SECONDS = 10.0
_NVML = "libnvidia-ml.so.1"
_NVML_PROCESS = (sys.executable, "-I", "-m", "crossgrade.facts.nvml")
_NVML_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "usr/lib/wsl/lib")
_QUERY = "index,name,uuid,pci.bus_id,memory.total,compute_cap"
_NVIDIA = "0x10de"
_DISPLAY_CLASSES = ("0x0300", "0x0302")


def read_gpus(environment: Mapping[str, str], runner: Runner, *, system: Path = Path("/")) -> GpuFacts:
    """The GPUs of a machine, from the best source that answers; why the better ones did not is under `unknown`.

    `system` is where /proc, /sys and the libraries are looked up. At most four programs are started, each with a time
    limit, and none where there is no sign of a driver.
    """
    module = parse_kernel_module(text_of(system / "proc/driver/nvidia/version"))
    library = _nvml_library(environment, system)
    links = _links(system)
    found = _asked(environment, runner, module is not None, library is not None)
    if not found.gpus:
        found = _listed(found, system, links, module is not None)
    unknown = dict(found.unknown)
    if module is None:
        unknown["kernel_module"] = "/proc/driver/nvidia/version is not there: the NVIDIA module is not loaded"
    if library is None:
        unknown["nvml_library"] = f"there is no {_NVML} in the loader's cache"
    installed = None
    if module is not None:
        installed, why = _installed_module(environment, runner)
        if why:
            unknown["installed_module"] = why
    return replace(
        found,
        kernel_module=module[0] if module else None,
        kernel_module_kind=module[1] if module else None,
        driver=found.driver or (module[0] if module else None),
        installed_module=installed,
        nvml_library=library,
        parameters=parse_parameters(text_of(system / "proc/driver/nvidia/params")),
        gpus=with_links(found.gpus, links),
        unknown=unknown,
    )


# ---- NVML and nvidia-smi


def ask_nvml(environment: Mapping[str, str], runner: Runner, *, system: Path = Path("/")) -> GpuFacts:
    """What NVML says, and nothing else: for questions that are asked again and again. Why not is under `unknown`.

    No program is started where there is no sign of a driver.
    """
    if _nvml_library(environment, system) is None:
        return GpuFacts(unknown={"gpus": NO_DRIVER})
    try:
        return parse_answer(_output(runner(_NVML_PROCESS, timeout=DRIVER_SECONDS), "NVML"))
    except (StartError, ValueError) as error:
        return GpuFacts(unknown={"gpus": str(error)})


def _asked(environment: Mapping[str, str], runner: Runner, loaded: bool, library: bool) -> GpuFacts:
    """What the driver's user part says, from NVML or else nvidia-smi."""
    programs = programs_on_path(environment.get("PATH", ""), "nvidia-smi")
    if not (loaded or library or programs):
        return GpuFacts(unknown={"gpus": NO_DRIVER})
    why: list[str] = []
    if library:
        try:
            return parse_answer(_output(runner(_NVML_PROCESS, timeout=DRIVER_SECONDS), "NVML"))
        except (StartError, ValueError) as error:
            why.append(str(error))
    else:
        why.append(f"there is no {_NVML}")
    if not programs:
        why.append("nvidia-smi is not on PATH")
        return GpuFacts(unknown={"gpus": "; ".join(why)})
    try:
        found = _ask_smi(str(programs[0]), runner)
    except (StartError, ValueError) as error:
        return GpuFacts(unknown={"gpus": "; ".join([*why, str(error)])})
    return replace(found, unknown={**found.unknown, "nvml": "; ".join(why)})


def _output(answer: Completed, what: str) -> str:
    if answer.succeeded:
        return answer.stdout
    said = " ".join((answer.stdout.strip() or answer.stderr.strip() or "nothing").splitlines()[:2])
    mismatch = nvml_mismatch(answer.stdout + answer.stderr)
    more = f" (library {mismatch})" if mismatch and mismatch not in said else ""
    raise ValueError(f"{what}: {answer.outcome()}, it said: {said}{more}")


def _ask_smi(program: str, runner: Runner) -> GpuFacts:
    """Raises StartError and ValueError when the log itself cannot be had; a missing table is under `unknown`."""
    log = parse_smi_log(_output(runner([program, "-q", "-x"], timeout=DRIVER_SECONDS), "nvidia-smi -q -x"))
    unknown: dict[str, str] = {}

    def asked(name: str, *arguments: str) -> str:
        try:
            return _output(runner([program, *arguments], timeout=DRIVER_SECONDS), f"nvidia-smi {arguments[0]}")
        except (StartError, ValueError) as error:
            unknown[name] = str(error)
            return ""

    capabilities: dict[str, str | None] = {}
    try:
        rows = parse_gpu_query(asked("compute_capability", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"))
        capabilities = {bus_address(row.pci_bus): row.compute_capability for row in rows}
    except ValueError as error:
        unknown["compute_capability"] = str(error)

    def table(*arguments: str) -> dict[tuple[int, int], str]:
        text = asked("pairs", *arguments) if len(log.gpus) > 1 else ""
        try:
            return parse_matrix(text) if text else {}
        except ValueError as error:
            unknown["pairs"] = f"nvidia-smi {' '.join(arguments)}: {error}"
            return {}

    pairs = pairs_of(table("topo", "-m"), table("topo", "-p2p", "r"))
    gpus = tuple(replace(gpu, compute_capability=capabilities.get(gpu.pci_bus)) for gpu in log.gpus)
    return GpuFacts("nvidia-smi", log.driver, cuda=log.cuda, gpus=gpus, pairs=pairs, unknown=unknown)


# ---- the kernel


def _listed(found: GpuFacts, system: Path, links: Mapping[str, PciLink], loaded: bool) -> GpuFacts:
    """The GPUs that the driver lists in /proc, else those on the bus."""
    unknown = dict(found.unknown)
    gpus = []
    for index, path in enumerate(sorted((system / "proc/driver/nvidia/gpus").glob("*/information"))):
        said = parse_gpu_information(text_of(path))
        address = bus_address(said.get("Bus Location", path.parent.name))
        minor = said.get("Device Minor", "")
        number = int(minor) if minor.isdigit() else None
        gpus.append(Gpu(index, said.get("Model", "unknown"), address, said.get("GPU UUID", ""), number))
    if gpus:
        return replace(found, source="proc", gpus=tuple(gpus), unknown=unknown)
    if loaded:
        unknown.setdefault("gpus", "the driver is loaded but lists no GPU")
    names = [(address, _pci_name(system, address)) for address in sorted(links)]
    gpus = [Gpu(index, name, address) for index, (address, name) in enumerate(names)]
    return replace(found, source="sysfs" if gpus else found.source, gpus=tuple(gpus), unknown=unknown)


def _pci_name(system: Path, address: str) -> str:
    folder = system / "sys/bus/pci/devices" / address
    return "PCI device " + ":".join(text_of(folder / name).strip().removeprefix("0x") for name in ("vendor", "device"))


def _links(system: Path) -> dict[str, PciLink]:
    """NVIDIA's display devices by address (Documentation/ABI/testing/sysfs-bus-pci)."""
    found = {}
    for folder in (system / "sys/bus/pci/devices").glob("*"):
        display = text_of(folder / "class").startswith(_DISPLAY_CLASSES)
        if not display or text_of(folder / "vendor").strip() != _NVIDIA:
            continue
        numa = text_of(folder / "numa_node").strip()
        found[folder.name.lower()] = PciLink(
            generation=link_generation(text_of(folder / "current_link_speed")),
            generation_limit=link_generation(text_of(folder / "max_link_speed")),
            width=_number(folder / "current_link_width"),
            width_limit=_number(folder / "max_link_width"),
            numa_node=int(numa) if numa.isdigit() else None,
            iommu=text_of(folder / "iommu_group" / "type").strip() or None,
            kernel_driver=_link_name(folder / "driver"),
            redirecting_bridges=_redirecting_bridges(folder),
        )
    return found


def _redirecting_bridges(device: Path) -> tuple[str, ...] | None:
    """The bridges above a device that redirect; None where the configuration of one cannot be read in full."""
    found = []
    for folder in device.resolve().parents:
        if not re.match(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]$", folder.name):
            break
        try:
            redirecting = redirects((folder / "config").read_bytes())
        except OSError:
            redirecting = None
        if redirecting is None:
            return None
        if redirecting:
            found.append(folder.name)
    return tuple(found)


def _number(path: Path) -> int | None:
    text = text_of(path).strip()
    return int(text) if text.isdigit() and text != "0" else None


def _link_name(path: Path) -> str | None:
    try:
        return path.readlink().name
    except OSError:
        return None


def _nvml_library(environment: Mapping[str, str], system: Path) -> str | None:
    """The file that libnvidia-ml.so.1 leads to, found as the loader does: LD_LIBRARY_PATH, its cache, its folders."""
    from crossgrade.inspect.loader_settings import parse_loader_cache

    folders = [Path(part) for part in environment.get("LD_LIBRARY_PATH", "").split(":") if part]
    places = [folder / _NVML for folder in folders]
    try:
        cached = parse_loader_cache((system / "etc/ld.so.cache").read_bytes(), platform.machine()).get(_NVML)
    except OSError:
        cached = None
    if cached:
        places.append(system / cached.lstrip("/"))
    places += [system / folder / _NVML for folder in _NVML_FOLDERS]
    found = next((place for place in places if is_there(place)), None)
    return os.path.realpath(found) if found else None


def _installed_module(environment: Mapping[str, str], runner: Runner) -> tuple[str | None, str]:
    """The version of the module that the running kernel would load now, and why it is not known."""
    programs = programs_on_path(f"{environment.get('PATH', '')}:/usr/sbin:/sbin", "modinfo")
    if not programs:
        return None, "modinfo is not there"
    try:
        answer = runner([str(programs[0]), "-F", "version", "nvidia"], timeout=MODINFO_SECONDS)
    except StartError as error:
        return None, str(error)
    version = next(iter(lines_of(answer.stdout)), "")
    if not answer.succeeded or not version:
        return (
            None,
            f"modinfo nvidia: {answer.outcome()}, it said: {(answer.stderr.strip() or 'nothing').splitlines()[0]}",
        )
    return version, ""
