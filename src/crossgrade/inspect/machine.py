"""What a machine is: system, memory, disk, driver, GPUs, toolkits, compilers. Everything here only reads.

What cannot be observed is None or empty, and `unknown` says why; nothing is guessed.

Sources: os-release(5), proc(5), confstr(3); the driver's /proc/driver/nvidia (chapter "/proc interface" of
the NVIDIA Linux driver README); ``nvidia-smi --help-query-gpu``.
"""

from __future__ import annotations

import csv
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

from crossgrade.inspect.host_compiler import HostCompiler, compiler_version, find_host_compilers
from crossgrade.inspect.query import Runner, programs_on_path, run_query
from crossgrade.inspect.toolkit import ToolkitFacts, find_toolkits
from crossgrade.jsontype import JSON
from crossgrade.places import free_bytes, nearest_existing
from crossgrade.process import StartError

NO_DRIVER = "no NVIDIA driver on this machine"
# nvidia-smi wakes every GPU first, which takes seconds each where persistence mode is off.
NVIDIA_SMI_SECONDS = 60.0
_GPU_FIELDS = ("index", "name", "uuid", "pci.bus_id", "memory.total", "compute_cap")
_DRIVER = re.compile(r"^NVRM version:.*?\s(\d{3,}\.\d+(?:\.\d+)*)\s", re.MULTILINE)
_LIBSTDCXX = "libstdc++.so.6"


@dataclass(frozen=True)
class Gpu:
    """One GPU; `memory_bytes` and `compute_capability` (``12.0``) come from nvidia-smi alone."""

    index: int
    name: str
    uuid: str
    pci_bus: str
    memory_bytes: int | None = None
    compute_capability: str | None = None


@dataclass(frozen=True)
class MachineFacts:
    """One machine. `unknown` maps a field to the reason why it is None, empty or incomplete.

    `glibcxx` and `cxxabi` are the newest symbol versions of the system's libstdc++ (``3.4.30``, ``1.3.13``).
    `processors` counts those that this process may use. Memory and disk are in bytes; `disk_free_bytes` is
    what an ordinary user may still write at `disk_path`. `driver` is the NVIDIA driver's version.
    """

    system: str
    system_id: str
    system_version: str
    kernel: str
    architecture: str
    glibc: str | None
    libstdcxx: str | None
    glibcxx: str | None
    cxxabi: str | None
    processors: int
    memory_bytes: int | None
    memory_available_bytes: int | None
    disk_path: str
    disk_free_bytes: int | None
    python_version: str
    python_executable: str
    driver: str | None
    gpus: tuple[Gpu, ...]
    toolkits: tuple[ToolkitFacts, ...]
    compilers: tuple[HostCompiler, ...]
    unknown: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, JSON]:
        """The facts as JSON has them: tuples as lists, dataclasses as objects."""
        return cast("dict[str, JSON]", _plain(asdict(self)))

    @property
    def host_compiler(self) -> HostCompiler | None:
        """The g++ that nvcc takes when nothing else is said; None where there is none."""
        return next((compiler for compiler in self.compilers if compiler.command == "g++"), None)


def collect_facts(
    *,
    root: Path | None = None,
    runner: Runner = run_query,
    environment: Mapping[str, str] | None = None,
    system: Path = Path("/"),
) -> MachineFacts:
    """Observe this machine.

    `root` is the directory whose disk is asked for free space (the store's); it need not exist yet; None
    means the working directory. `environment` gives PATH, CUDA_HOME and CUDA_PATH and is the process's own by
    default. `system` is where /proc, /etc and /usr/local are looked up.
    """
    variables = os.environ if environment is None else environment
    unknown: dict[str, str] = {}
    release = parse_os_release(_text(system / "etc/os-release") or _text(system / "usr/lib/os-release"))
    if not release:
        unknown["system"] = "there is no /etc/os-release"
    glibc = glibc_version()
    if glibc is None:
        unknown["glibc"] = "the C library does not say a glibc version; this may be musl"
    library, versions = standard_library(system, unknown)
    memory = parse_meminfo(_text(system / "proc/meminfo"))
    if "MemTotal" not in memory:
        unknown["memory_bytes"] = "/proc/meminfo states no MemTotal"
    if "MemAvailable" not in memory:
        unknown["memory_available_bytes"] = "/proc/meminfo states no MemAvailable"
    disk_path, disk_free = _disk(Path.cwd() if root is None else root, unknown)
    driver = driver_version(system)
    if driver is None:
        unknown["driver"] = _no_driver_reason(system)
    gpus = _gpus(system, driver, variables, runner, unknown)
    toolkits, problems = find_toolkits(variables, runner, system=system)
    if problems:
        unknown["toolkits"] = "; ".join(problems)
    elif not toolkits:
        unknown["toolkits"] = "none in CUDA_HOME, CUDA_PATH, PATH or /usr/local/cuda*"
    compilers = find_host_compilers(variables.get("PATH", ""), runner)
    if not any(compiler.is_cpp for compiler in compilers):
        unknown["compilers"] = "there is no g++ on PATH"
    return MachineFacts(
        system=release.get("PRETTY_NAME", "unknown"),
        system_id=release.get("ID", ""),
        system_version=release.get("VERSION_ID", ""),
        kernel=platform.release(),
        architecture=platform.machine(),
        glibc=glibc,
        libstdcxx=library,
        glibcxx=newest_version(versions, "GLIBCXX_"),
        cxxabi=newest_version(versions, "CXXABI_"),
        processors=len(os.sched_getaffinity(0)),
        memory_bytes=memory.get("MemTotal"),
        memory_available_bytes=memory.get("MemAvailable"),
        disk_path=disk_path,
        disk_free_bytes=disk_free,
        python_version=platform.python_version(),
        python_executable=sys.executable,
        driver=driver,
        gpus=gpus,
        toolkits=toolkits,
        compilers=compilers,
        unknown=unknown,
    )


def plan_basis(
    *,
    runner: Runner = run_query,
    environment: Mapping[str, str] | None = None,
    system: Path = Path("/"),
) -> dict[str, JSON]:
    """The facts that a plan depends on, to be compared before a saved plan is carried out.

    Keys: `driver`, `gpus` (a list of names with UUIDs), `glibc`, `gcc` (the version of g++ on PATH); each is
    None where there is none. One short program is started at most (g++): some 3 ms in all. The GPUs are what
    the driver lists in /proc, because nvidia-smi can take seconds; a GPU's name and UUID decide its compute
    capability.
    """
    variables = os.environ if environment is None else environment
    programs = programs_on_path(variables.get("PATH", ""), "g++")
    try:
        gcc = compiler_version(programs[0], runner) if programs else None
    except (StartError, ValueError) as error:
        gcc = f"unknown: {error}"
    driver = driver_version(system)
    gpus: JSON = [f"{gpu.name} {gpu.uuid}" for gpu in listed_gpus(system)] if driver is not None else None
    return {"driver": driver, "gpus": gpus, "glibc": glibc_version(), "gcc": gcc}


_BASIS_WORDS = {"driver": "the NVIDIA driver", "gpus": "the GPUs", "glibc": "glibc", "gcc": "g++"}


def basis_differences(planned: Mapping[str, JSON], now: Mapping[str, JSON]) -> tuple[str, ...]:
    """What changed between two results of `plan_basis`, one sentence each; empty where nothing did. Pure."""

    def shown(value: JSON) -> str:
        if isinstance(value, list):
            return ", ".join(map(str, value)) or "none"
        return "none" if value is None else str(value)

    return tuple(
        f"{_BASIS_WORDS.get(name, name)}: {shown(planned.get(name))} when planned, {shown(now.get(name))} now"
        for name in sorted({*planned, *now})
        if planned.get(name) != now.get(name)
    )


def parse_os_release(text: str) -> dict[str, str]:
    """The assignments of an os-release file, unquoted as a shell would; broken lines are left out."""
    import shlex

    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if not equals or name.startswith("#"):
            continue
        try:
            found[name] = "".join(shlex.split(value)[:1])
        except ValueError:
            continue
    return found


def parse_meminfo(text: str) -> dict[str, int]:
    """Bytes by name from /proc/meminfo, whose own unit is KiB."""
    return {match[1]: int(match[2]) * 1024 for match in re.finditer(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def parse_driver_version(text: str) -> str | None:
    """The driver's version from /proc/driver/nvidia/version: ``580.95.05``; None where it is not stated."""
    match = _DRIVER.search(text)
    return match[1] if match else None


def parse_gpu_query(text: str) -> tuple[Gpu, ...]:
    """GPUs from ``nvidia-smi --query-gpu=index,name,uuid,pci.bus_id,memory.total,compute_cap
    --format=csv,noheader,nounits``, whose memory is in MiB.

    Raises ValueError for anything else. A value that the GPU does not support (``[N/A]``) becomes None.
    """
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if not row:
            continue
        if len(row) != len(_GPU_FIELDS):
            raise ValueError(f"nvidia-smi gave {len(row)} values where {len(_GPU_FIELDS)} were asked for: {row}")
        index, name, uuid, bus, memory, capability = (value.strip() for value in row)
        found.append(
            Gpu(
                index=int(index),
                name=name,
                uuid=uuid,
                pci_bus=bus.lower(),
                memory_bytes=int(memory) * 1024**2 if memory.isdigit() else None,
                compute_capability=capability if re.match(r"\d+\.\d+$", capability) else None,
            )
        )
    return tuple(found)


def parse_gpu_information(text: str) -> dict[str, str]:
    """The fields of /proc/driver/nvidia/gpus/*/information."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def newest_version(versions: tuple[str, ...], prefix: str) -> str | None:
    """The newest of the symbol versions that begin with `prefix`, without it: ``3.4.30``."""
    numbered = [name[len(prefix) :] for name in versions if re.match(rf"{prefix}\d+(\.\d+)*$", name)]
    return max(numbered, key=lambda text: tuple(map(int, text.split("."))), default=None)


def glibc_version() -> str | None:
    """The version of the C library that this process runs with; None where it is not glibc."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return None
    name, _, version = text.partition(" ")
    return version if name == "glibc" and version else None


def standard_library(system: Path, unknown: dict[str, str]) -> tuple[str | None, tuple[str, ...]]:
    """Path of the system's libstdc++ and the symbol versions that it defines."""
    from crossgrade.inspect.elf import FileSource, UnreadableElfError, parse_elf
    from crossgrade.inspect.loader_settings import parse_loader_cache

    try:
        cache = (system / "etc/ld.so.cache").read_bytes()
    except OSError:
        cache = b""
    path = parse_loader_cache(cache, platform.machine()).get(_LIBSTDCXX)
    if path is None:
        unknown["libstdcxx"] = f"/etc/ld.so.cache has no {_LIBSTDCXX}"
        return None, ()
    try:
        with FileSource(path) as source:
            defined = parse_elf(source).defined_versions
    except UnreadableElfError as error:
        unknown["glibcxx"] = f"{path}: {error.reason}"
        return path, ()
    return path, tuple(version.version for version in defined if not version.base)


def _disk(root: Path, unknown: dict[str, str]) -> tuple[str, int | None]:
    """The nearest directory that exists at or above `root`, and the bytes free there."""
    place = nearest_existing(root.absolute())
    try:
        return str(place), free_bytes(place)
    except OSError as error:
        unknown["disk_free_bytes"] = f"{place}: {error.strerror}"
        return str(place), None


def driver_version(system: Path = Path("/")) -> str | None:
    """The version of the NVIDIA driver that is loaded (``580.95.05``); None where there is none. One file is read."""
    return parse_driver_version(_text(system / "proc/driver/nvidia/version"))


def _no_driver_reason(system: Path) -> str:
    path = system / "proc/driver/nvidia/version"
    return f"{path} states no version that is understood" if path.exists() else NO_DRIVER


def _gpus(
    system: Path, driver: str | None, variables: Mapping[str, str], runner: Runner, unknown: dict[str, str]
) -> tuple[Gpu, ...]:
    if driver is None:
        unknown["gpus"] = unknown["driver"]
        return ()
    listed = listed_gpus(system)
    try:
        answered = _asked_gpus(variables, runner)
    except (StartError, ValueError) as error:
        unknown["gpus"] = f"{error}; memory and compute capability are not known without it"
        return listed
    if not answered and not listed:
        unknown["gpus"] = "the driver is loaded but lists no GPU"
    return answered or listed


def _asked_gpus(variables: Mapping[str, str], runner: Runner) -> tuple[Gpu, ...]:
    programs = programs_on_path(variables.get("PATH", ""), "nvidia-smi")
    if not programs:
        raise ValueError("nvidia-smi is not on PATH")
    query = f"--query-gpu={','.join(_GPU_FIELDS)}"
    answer = runner([str(programs[0]), query, "--format=csv,noheader,nounits"], timeout=NVIDIA_SMI_SECONDS)
    if not answer.succeeded:
        said = (answer.stdout.strip() or answer.stderr.strip() or "nothing").splitlines()[0]
        raise ValueError(f"nvidia-smi: {answer.outcome()}, it said: {said}")
    return parse_gpu_query(answer.stdout)


def listed_gpus(system: Path) -> tuple[Gpu, ...]:
    """The GPUs of /proc/driver/nvidia/gpus in order of PCI address, as nvidia-smi numbers them."""
    found = []
    for index, path in enumerate(sorted((system / "proc/driver/nvidia/gpus").glob("*/information"))):
        fields = parse_gpu_information(_text(path))
        bus = fields.get("Bus Location", path.parent.name)
        found.append(Gpu(index, fields.get("Model", "unknown"), fields.get("GPU UUID", ""), bus))
    return tuple(found)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
