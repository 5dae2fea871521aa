"""GPUs and their driver as plain data, and the parsers of what NVIDIA's tools and the kernel say of them. Pure.

Sources: ``nvidia-smi -q -x`` (nvsmi_device_v12.dtd, _v13.dtd), ``nvidia-smi topo -m`` and ``topo -p2p r``; the driver's
/proc/driver/nvidia (chapter "/proc interface" of the NVIDIA Linux driver README); sysfs-bus-pci of the kernel's ABI.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MIB = 1024**2
_BUS = re.compile(r"(?:([0-9a-f]+):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-9a-f])$", re.IGNORECASE)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_KERNEL_MODULE = re.compile(r"^NVRM version:\s+(.*?)\s(\d{3,}\.\d+(?:\.\d+)*)(?:\s|$)", re.MULTILINE)
_NVML_LIBRARY = re.compile(r"^NVML library version:\s*(\d+(?:\.\d+)+)", re.MULTILINE)
_LIBRARY_VERSION = re.compile(r"\.so\.(\d{3,}\.\d+(?:\.\d+)*)$")
_REASON = re.compile(r"clocks_(?:event|throttle)_reason_(\w+)")


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU; `memory_bytes` is None where the driver does not say."""

    pid: int
    name: str
    memory_bytes: int | None = None


@dataclass(frozen=True)
class PciLink:
    """A GPU's place on the bus, from sysfs. Generations and widths are None where they are not stated.

    `iommu` is the type of its IOMMU group (``DMA``, ``DMA-FQ``, ``identity``), None where it is in none.
    `redirecting_bridges` are the bridges above it whose Access Control Services send traffic between devices up to the
    root complex; None where their configuration cannot be read (only root may).
    """

    generation: int | None = None
    generation_limit: int | None = None
    width: int | None = None
    width_limit: int | None = None
    numa_node: int | None = None
    iommu: str | None = None
    kernel_driver: str | None = None
    redirecting_bridges: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU. What its source does not tell is None.

    `pci_bus` is as sysfs writes it (``0000:61:00.0``); `compute_capability` like ``12.0``; `clock_reasons` are NVML's
    names of what holds the clocks down now (``hw_slowdown``), without ``gpu_idle``; memory is in bytes, `utilization`
    in percent. `minor` is the number of its device file, /dev/nvidiaN. `mig` is the MIG mode where the GPU has one.
    `recovery` is what the driver asks for to get it going again (``None``, ``Reset``, ``Reboot``, ``Drain and Reset``).
    """

    index: int
    name: str
    pci_bus: str
    uuid: str = ""
    minor: int | None = None
    architecture: str | None = None
    compute_capability: str | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    bar1_bytes: int | None = None
    persistence: bool | None = None
    performance_state: str | None = None
    utilization: int | None = None
    clock_reasons: tuple[str, ...] | None = None
    mig: bool | None = None
    recovery: str | None = None
    processes: tuple[GpuProcess, ...] | None = None
    link: PciLink = PciLink()


@dataclass(frozen=True)
class GpuPair:
    """How two GPUs reach each other, by index.

    `path` is as ``nvidia-smi topo -m`` names it (PIX, PXB, PHB, NODE, SYS, NV4). `peer_read` is what ``topo -p2p r``
    says: ``OK``, or why not (``CNS`` chipset not supported, ``GNS`` GPU not supported, ``NS``); None where not asked.
    """

    first: int
    second: int
    path: str | None = None
    peer_read: str | None = None


@dataclass(frozen=True)
class GpuFacts:
    """The GPUs of a machine and the parts of their driver. `unknown` says of what is None or empty why it is.

    `source` is where the GPUs were asked: ``nvml``, ``nvidia-smi``, ``proc``, ``sysfs`` or, without any, empty.
    `driver` is the version of the part that programs talk to, `kernel_module` the version of the module that is loaded
    (`kernel_module_kind`: ``open`` or ``proprietary``), `installed_module` the one on disk that the next boot loads,
    `nvml_library` the file that libnvidia-ml.so.1 leads to. `cuda` is the newest CUDA release that the driver knows.
    """

    source: str = ""
    driver: str | None = None
    kernel_module: str | None = None
    kernel_module_kind: str | None = None
    installed_module: str | None = None
    nvml_library: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    pairs: tuple[GpuPair, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SmiLog:
    """What ``nvidia-smi -q -x`` says."""

    driver: str | None
    cuda: str | None
    gpus: tuple[Gpu, ...]


def bus_address(text: str) -> str:
    """A PCI address as sysfs writes it: ``00000000:61:00.0`` and ``61:00.0`` become ``0000:61:00.0``."""
    match = _BUS.search(text.strip())
    if match is None:
        return text.strip().lower()
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function}".lower()


def parse_smi_log(text: str) -> SmiLog:
    """Read ``nvidia-smi -q -x``. Raises ValueError for what is no such log.

    It names no compute capability. A value that a GPU does not support (``N/A``) becomes None.
    """
    from xml.etree import ElementTree

    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - what the driver's own tool printed
    except ElementTree.ParseError as error:
        raise ValueError(f"it is no XML: {error}") from error
    if root.tag != "nvidia_smi_log":
        raise ValueError(f"it is <{root.tag}>, not <nvidia_smi_log>")
    gpus = tuple(_smi_gpu(index, element) for index, element in enumerate(root.findall("gpu")))
    return SmiLog(_said(root.findtext("driver_version")), _said(root.findtext("cuda_version")), gpus)


def _smi_gpu(index: int, element: Element) -> Gpu:
    def said(path: str) -> str | None:
        return _said(element.findtext(path))

    mig = said("mig_mode/current_mig")
    persistence = said("persistence_mode")
    return Gpu(
        index=index,
        name=said("product_name") or "unknown",
        pci_bus=bus_address(str(element.get("id") or said("pci/pci_bus_id") or "")),
        uuid=said("uuid") or "",
        minor=_leading_number(said("minor_number")),
        architecture=said("product_architecture"),
        memory_bytes=_mebibytes(said("fb_memory_usage/total")),
        memory_used_bytes=_mebibytes(said("fb_memory_usage/used")),
        bar1_bytes=_mebibytes(said("bar1_memory_usage/total")),
        persistence=None if persistence is None else persistence == "Enabled",
        performance_state=said("performance_state"),
        utilization=_leading_number(said("utilization/gpu_util")),
        clock_reasons=_smi_reasons(element),
        mig=None if mig is None else mig == "Enabled",
        recovery=(element.findtext("gpu_recovery_action") or "").strip() or None,
        processes=_smi_processes(element),
        link=PciLink(
            generation=_leading_number(said("pci/pci_gpu_link_info/pcie_gen/current_link_gen")),
            generation_limit=_leading_number(said("pci/pci_gpu_link_info/pcie_gen/max_link_gen")),
            width=_leading_number(said("pci/pci_gpu_link_info/link_widths/current_link_width")),
            width_limit=_leading_number(said("pci/pci_gpu_link_info/link_widths/max_link_width")),
        ),
    )


def _smi_reasons(element: Element) -> tuple[str, ...] | None:
    """`clocks_event_reasons`, which drivers before R535 call `clocks_throttle_reasons`."""
    for name in ("clocks_event_reasons", "clocks_throttle_reasons"):
        block = element.find(name)
        if block is not None:
            active = [match[1] for item in block if item.text == "Active" and (match := _REASON.match(item.tag))]
            return tuple(sorted(reason for reason in active if reason != "gpu_idle"))
    return None


def _smi_processes(element: Element) -> tuple[GpuProcess, ...] | None:
    block = element.find("processes")
    if block is None or (block.text or "").strip() == "N/A":
        return None
    return tuple(
        GpuProcess(
            int(pid), _said(item.findtext("process_name")) or "", _mebibytes(_said(item.findtext("used_memory")))
        )
        for item in block.findall("process_info")
        if (pid := (item.findtext("pid") or "").strip()).isdigit()
    )


def parse_matrix(text: str) -> dict[tuple[int, int], str]:
    """The cells of ``nvidia-smi topo -m`` or ``topo -p2p r`` between two GPUs, by their indexes, each pair once.

    Columns of network cards and of affinities are passed over. Raises ValueError where there is no such table.
    """
    header: list[int] = []
    cells: dict[tuple[int, int], str] = {}
    for line in _ESCAPE.sub("", text).splitlines():
        words = line.split()
        if not header:
            header = [int(word[3:]) for word in words if re.fullmatch(r"GPU\d+", word)] if words else []
            continue
        if words and re.fullmatch(r"GPU\d+", words[0]):
            row = int(words[0][3:])
            for column, cell in zip(header, words[1:], strict=False):
                if row < column:
                    cells[row, column] = cell
    if not header:
        raise ValueError("there is no row of GPU names in it")
    missing = [pair for pair in _all_pairs(header) if pair not in cells]
    if missing:
        raise ValueError(f"it says nothing of GPUs {missing[0][0]} and {missing[0][1]}")
    return cells


def _all_pairs(indexes: Sequence[int]) -> list[tuple[int, int]]:
    return [(first, second) for first in indexes for second in indexes if first < second]


def pairs_of(paths: Mapping[tuple[int, int], str], peers: Mapping[tuple[int, int], str]) -> tuple[GpuPair, ...]:
    """Both tables as one; a pair may be missing in either."""
    return tuple(GpuPair(*key, paths.get(key), peers.get(key)) for key in sorted({*paths, *peers}))


def parse_kernel_module(text: str) -> tuple[str, str] | None:
    """Version and kind (``open`` or ``proprietary``) of the loaded module, from /proc/driver/nvidia/version."""
    match = _KERNEL_MODULE.search(text)
    if match is None:
        return None
    return match[2], "open" if "Open Kernel Module" in match[1] else "proprietary"


def parse_parameters(text: str) -> dict[str, str]:
    """The module's parameters from /proc/driver/nvidia/params, without the quotes around texts."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip().strip('"') for name, colon, value in pairs if colon}


def nvml_mismatch(text: str) -> str | None:
    """The version of the NVML library that does not fit to the loaded module, from what nvidia-smi says; None else."""
    if "version mismatch" not in text:
        return None
    match = _NVML_LIBRARY.search(text)
    return match[1] if match else ""


def with_links(gpus: Sequence[Gpu], links: Mapping[str, PciLink]) -> tuple[Gpu, ...]:
    """The GPUs with what sysfs knows of their links laid under what their own source says."""

    def merged(gpu: Gpu) -> Gpu:
        below = links.get(gpu.pci_bus)
        if below is None:
            return gpu
        own = {name: value for name, value in vars(gpu.link).items() if value is not None}
        return replace(gpu, link=replace(below, **own))

    return tuple(merged(gpu) for gpu in gpus)


def link_generation(speed: str) -> int | None:
    """The PCIe generation of sysfs's ``32.0 GT/s PCIe``."""
    match = re.match(r"([\d.]+) GT/s", speed)
    speeds = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "8": 3, "16.0": 4, "16": 4, "32.0": 5, "32": 5, "64.0": 6, "64": 6}
    return speeds.get(match[1]) if match else None


def library_version(path: str | None) -> str | None:
    """The driver version in a library's file name: ``580.95.05`` of libnvidia-ml.so.580.95.05."""
    match = _LIBRARY_VERSION.search(path or "")
    return match[1] if match else None


def release_numbers(version: str) -> tuple[int, ...]:
    """``580.95.05`` as (580, 95, 5), to be compared."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


# Access Control Services of PCI Express (Base Specification, 7.7.11): id of the capability, and two bits of its control
_ACS = 0x000D
_REQUEST_REDIRECT, _COMPLETION_REDIRECT = 1 << 2, 1 << 3
_EXTENDED_START = 0x100


def redirects(configuration: bytes) -> bool | None:
    """Whether a bridge's ACS redirects traffic between devices, from its configuration space.

    False for a bridge without ACS; None where only the first 256 bytes could be read, as others than root get them.
    """
    offset, seen = _EXTENDED_START, set[int]()
    if len(configuration) < _EXTENDED_START + 4:
        return None
    while offset >= _EXTENDED_START and offset not in seen and offset + 8 <= len(configuration):
        seen.add(offset)
        header = int.from_bytes(configuration[offset : offset + 4], "little")
        if header & 0xFFFF == _ACS:
            control = int.from_bytes(configuration[offset + 6 : offset + 8], "little")
            return bool(control & (_REQUEST_REDIRECT | _COMPLETION_REDIRECT))
        offset = header >> 20
    return False


def _said(text: str | None) -> str | None:
    """A value, None for N/A and its like."""
    value = (text or "").strip()
    if not value or value in ("N/A", "[N/A]", "Unknown Error", "None") or value.startswith(("Requested func", "ERR!")):
        return None
    return value


def _leading_number(text: str | None) -> int | None:
    match = re.match(r"\d+", text or "")
    return int(match[0]) if match else None


def _mebibytes(text: str | None) -> int | None:
    match = re.match(r"(\d+) MiB$", text or "")
    return int(match[1]) * MIB if match else None
