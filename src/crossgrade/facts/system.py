"""The machine below the software: system, kernel, C and C++ libraries, memory, disks, IOMMU, a reboot that is due.

Sources: os-release(5), proc(5), sysfs-kernel-iommu_groups, cgroup v2 (memory.max); Debian Policy's
/var/run/reboot-required (update-notifier).
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crossgrade.facts.text import is_there, lines_of, text_of
from crossgrade.inspect.machine import glibc_version, newest_version, parse_meminfo, parse_os_release, standard_library
from crossgrade.places import nearest_existing

_LIBCUDA = "libcuda.so.1"
_LIBCUDA_VERSION = re.compile(r"libcuda\.so\.(\d{3,}\.\d+(?:\.\d+)*)$")
_IOMMU_WORDS = re.compile(r"^(?:\w*iommu\w*(?:\.\w+)?|pcie_acs_override|pci)=")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_SHOWN_VARIABLES = ("CUDA_", "NCCL_", "NVCC_", "NVIDIA_", "FLASHINFER_", "TORCH_CUDA_", "SGLANG_", "TRITON_")
_SHOWN_NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "MAX_JOBS", "CC", "CXX")
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Disk:
    """The filesystem that a place is on; bytes as an ordinary user may write them. `places` are what is kept there."""

    mount_point: str
    device: str
    filesystem: str
    size_bytes: int
    free_bytes: int
    read_only: bool
    places: tuple[str, ...]


@dataclass(frozen=True)
class CudaDriverLibrary:
    """A libcuda.so.1 that programs would load. `origin` is ``LD_LIBRARY_PATH`` or ``ld.so.cache``.

    `version` is the driver release in the name of the file that it leads to; None where the name says none.
    """

    path: str
    target: str
    version: str | None
    origin: str


@dataclass(frozen=True)
class SystemFacts:
    """One machine without its GPUs. Memory is in bytes; `memory_limit_bytes` is a control group's, None without one.

    `processors` counts those that this process may use. `glibcxx` and `cxxabi` are the newest symbol versions of the
    system's libstdc++. `reboot` gives the reasons why a reboot is pending, `iommu_parameters` what of the kernel's
    command line is about the IOMMU, `iommu_groups` how many there are (0: the IOMMU is off). `proxies` are the proxy
    variables by their lower-case names, with passwords left out. `variables` are those that builds and servers read.
    """

    system: str
    system_id: str
    system_version: str
    kernel: str
    newest_kernel: str | None
    architecture: str
    glibc: str | None
    libstdcxx: str | None
    glibcxx: str | None
    cxxabi: str | None
    processors: int
    memory_bytes: int | None
    memory_available_bytes: int | None
    memory_limit_bytes: int | None
    swap_bytes: int | None
    shared_memory_bytes: int | None
    disks: tuple[Disk, ...]
    reboot: tuple[str, ...]
    iommu_parameters: tuple[str, ...]
    iommu_groups: int
    cuda_driver_libraries: tuple[CudaDriverLibrary, ...]
    proxies: Mapping[str, str]
    variables: Mapping[str, str]
    inside: str
    unknown: Mapping[str, str] = field(default_factory=dict)


def read_system(
    environment: Mapping[str, str], *, places: Sequence[Path] = (), system: Path = Path("/"), kernel: str = ""
) -> SystemFacts:
    """Read it all from files. `places` are those whose disks are wanted, `kernel` the running release (uname's)."""
    unknown: dict[str, str] = {}
    release = parse_os_release(text_of(system / "etc/os-release") or text_of(system / "usr/lib/os-release"))
    memory = parse_meminfo(text_of(system / "proc/meminfo"))
    for name, key in (("memory_bytes", "MemTotal"), ("memory_available_bytes", "MemAvailable")):
        if key not in memory:
            unknown[name] = f"/proc/meminfo states no {key}"
    if (glibc := glibc_version()) is None:
        unknown["glibc"] = "the C library does not say a glibc version; this may be musl"
    library, versions = standard_library(system, unknown)
    running = kernel or platform.release()
    newest = newest_kernel([path.name for path in _kernels(system)])
    command_line = text_of(system / "proc/cmdline").split()
    limit = text_of(system / "sys/fs/cgroup/memory.max").strip()
    return SystemFacts(
        system=release.get("PRETTY_NAME", "unknown"),
        system_id=release.get("ID", ""),
        system_version=release.get("VERSION_ID", ""),
        kernel=running,
        newest_kernel=newest,
        architecture=platform.machine(),
        glibc=glibc,
        libstdcxx=library,
        glibcxx=newest_version(versions, "GLIBCXX_"),
        cxxabi=newest_version(versions, "CXXABI_"),
        processors=len(os.sched_getaffinity(0)),
        memory_bytes=memory.get("MemTotal"),
        memory_available_bytes=memory.get("MemAvailable"),
        memory_limit_bytes=int(limit) if limit.isdigit() else None,
        swap_bytes=memory.get("SwapTotal"),
        shared_memory_bytes=_size(system / "dev/shm"),
        disks=_disks(places, system, unknown),
        reboot=_reboot(system, running, newest),
        iommu_parameters=tuple(word for word in command_line if _IOMMU_WORDS.match(word)),
        iommu_groups=len(list((system / "sys/kernel/iommu_groups").glob("*"))),
        cuda_driver_libraries=_cuda_driver_libraries(environment, system),
        proxies=proxies_of(environment),
        variables=_variables(environment),
        inside=_inside(system),
        unknown=unknown,
    )


# ---- pure


def newest_kernel(releases: Sequence[str]) -> str | None:
    """The newest of kernel releases by the numbers in their names: ``6.8.0-85-generic`` after ``6.8.0-9-generic``."""
    return max(releases, key=lambda name: ([int(part) for part in re.findall(r"\d+", name)], name), default=None)


def parse_mounts(text: str) -> list[tuple[str, str, str, bool]]:
    """Device, mount point, filesystem and whether it is read-only, from /proc/mounts (fstab(5): octal escapes)."""
    found = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 4:
            device, point, kind = (_OCTAL.sub(lambda match: chr(int(match[1], 8)), each) for each in fields[:3])
            found.append((device, point, kind, "ro" in fields[3].split(",")))
    return found


def mount_of(path: str, mounts: Sequence[tuple[str, str, str, bool]]) -> tuple[str, str, str, bool] | None:
    """The mount that a path is on: the deepest mount point above it, the last of those that lie upon each other."""
    above = [mount for mount in mounts if path == mount[1] or path.startswith(mount[1].rstrip("/") + "/")]
    return max(reversed(above), key=lambda mount: len(mount[1]), default=None)


def proxies_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The proxy variables by lower-case name; the lower-case spelling wins, as in curl. Passwords become ``***``."""
    found = {}
    for name in _PROXIES:
        value = environment.get(name) or environment.get(name.upper())
        if value:
            found[name] = re.sub(r"//[^/@]*@", "//***@", value)
    return found


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(environment.items())
        if name in _SHOWN_NAMES or (name.startswith(_SHOWN_VARIABLES) and not re.search("KEY|TOKEN|SECRET|PASS", name))
    }


# ---- reading


def _kernels(system: Path) -> list[Path]:
    """Modules that a kernel in /boot goes with; a folder of modules alone is what a removed package leaves."""
    return [path for path in (system / "lib/modules").glob("*") if is_there(system / "boot" / f"vmlinuz-{path.name}")]


def _reboot(system: Path, running: str, newest: str | None) -> tuple[str, ...]:
    reasons = []
    marker = next((path for name in ("run", "var/run") if (path := system / name / "reboot-required").exists()), None)
    if marker is not None:
        packages = sorted(set(lines_of(text_of(marker.with_name("reboot-required.pkgs")))))
        reasons.append("packages ask for it" + (f": {', '.join(packages)}" if packages else ""))
    if newest is not None and newest != running and newest_kernel([newest, running]) == newest:
        reasons.append(f"kernel {newest} is installed, {running} runs")
    return tuple(reasons)


def _size(path: Path) -> int | None:
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return status.f_blocks * status.f_frsize


def _disks(places: Sequence[Path], system: Path, unknown: dict[str, str]) -> tuple[Disk, ...]:
    mounts = parse_mounts(text_of(system / "proc/mounts"))
    kept: dict[tuple[str, str, str, bool], list[str]] = {}
    for place in places:
        try:
            real = os.path.realpath(nearest_existing(place.absolute()))
        except OSError as error:  # a folder on the way may not be entered
            unknown["disks"] = f"{place}: {error.strerror}"
            continue
        mount = mount_of(real, mounts)
        if mount is None:
            unknown["disks"] = f"/proc/mounts names nothing that {real} is on"
        elif str(place) not in kept.setdefault(mount, []):
            kept[mount].append(str(place))
    found = []
    for (device, point, kind, read_only), names in kept.items():
        try:
            status = os.statvfs(nearest_existing(Path(names[0]).absolute()))
        except OSError as error:
            unknown["disks"] = f"{names[0]}: {error.strerror}"
            continue
        size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
        found.append(Disk(point, device, kind, size, free, read_only, tuple(names)))
    return tuple(found)


def _cuda_driver_libraries(environment: Mapping[str, str], system: Path) -> tuple[CudaDriverLibrary, ...]:
    """What a program would load as libcuda.so.1, in the loader's order."""
    from crossgrade.inspect.loader_settings import parse_loader_cache

    folders = [Path(part) for part in environment.get("LD_LIBRARY_PATH", "").split(":") if part]
    places = [(folder / _LIBCUDA, "LD_LIBRARY_PATH") for folder in folders]
    try:
        cached = parse_loader_cache((system / "etc/ld.so.cache").read_bytes(), platform.machine()).get(_LIBCUDA)
    except OSError:
        cached = None
    if cached:
        places.append((system / cached.lstrip("/"), "ld.so.cache"))
    found = []
    for path, origin in places:
        if is_there(path):
            target = os.path.realpath(path)
            match = _LIBCUDA_VERSION.search(target)
            found.append(CudaDriverLibrary(str(path), target, match[1] if match else None, origin))
    return tuple(found)


def _inside(system: Path) -> str:
    """The kind of container that this is, empty on a machine of its own (systemd's and the engines' own markers)."""
    if (system / ".dockerenv").exists():
        return "docker"
    if (system / "run/.containerenv").exists():
        return "podman"
    return text_of(system / "run/systemd/container").strip()
