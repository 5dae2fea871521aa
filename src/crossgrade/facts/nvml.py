"""Asking NVML, in a process of its own: a driver that hangs must not hang crossgrade, which can stop the process.

`python -m crossgrade.facts.nvml` prints one JSON document and `parse_answer` reads it. The bindings are NVIDIA's own
(nvidia-ml-py). Names and numbers are those of the NVML API reference: https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from crossgrade.facts.gpus import Gpu, GpuFacts, GpuPair, GpuProcess, PciLink, bus_address

NO_BINDINGS = "nvidia-ml-py is not installed"
# nvmlClocksEventReasons
CLOCK_REASONS = {
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
}
# nvmlGpuTopologyLevel_t, by the words of `nvidia-smi topo -m`; INTERNAL is two GPUs on one board
PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# nvmlGpuP2PStatus_t, by the words of `nvidia-smi topo -p2p`
PEER_STATUSES = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
# nvmlDeviceGpuRecoveryAction_t, by the words of `nvidia-smi -q`
RECOVERY = {0: "None", 1: "Reset", 2: "Reboot", 3: "Drain P2P", 4: "Drain and Reset"}
_PEER_READ = 0  # NVML_P2P_CAPS_INDEX_READ


def clock_reasons(bits: int) -> tuple[str, ...]:
    """The names of the bits that are set, but for ``gpu_idle`` (0x1); an unknown bit is named by its number."""
    rest = bits & ~0x1 & ~sum(CLOCK_REASONS)
    found = [name for bit, name in CLOCK_REASONS.items() if bits & bit]
    return tuple(sorted(found + ([f"0x{rest:x}"] if rest else [])))


def parse_answer(text: str) -> GpuFacts:
    """What the other process printed. Raises ValueError for anything else, with what it says went wrong."""
    document = json.loads(text or "null")
    if not isinstance(document, dict):
        raise ValueError("it printed no JSON object")
    if "error" in document:
        raise ValueError(str(document["error"]))
    try:
        cuda = document["cuda"]
        return GpuFacts(
            source="nvml",
            driver=document["driver"],
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
            gpus=tuple(_gpu(index, gpu) for index, gpu in enumerate(document["gpus"])),
            pairs=tuple(
                GpuPair(first, second, PATHS.get(path, f"level {path}") if path is not None else None, _peer(peer))
                for first, second, path, peer in document["pairs"]
            ),
            unknown=document["unknown"],
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"its JSON is of another shape: {error!r}") from error


def _peer(status: int | None) -> str | None:
    return None if status is None else PEER_STATUSES.get(status, f"status {status}")


def _gpu(index: int, answer: Mapping[str, Any]) -> Gpu:
    capability, reasons, processes = answer["compute_capability"], answer["clock_reasons"], answer["processes"]
    action = answer["recovery"]
    generation, width = answer["pcie"] or (None, None), answer["pcie_width"] or (None, None)
    return Gpu(
        index=index,
        name=answer["name"] or "unknown",
        pci_bus=bus_address(answer["pci_bus"] or ""),
        uuid=answer["uuid"] or "",
        minor=answer["minor"],
        compute_capability=".".join(map(str, capability)) if capability else None,
        memory_bytes=answer["memory"][0] if answer["memory"] else None,
        memory_used_bytes=answer["memory"][1] if answer["memory"] else None,
        bar1_bytes=answer["bar1"],
        persistence=None if answer["persistence"] is None else bool(answer["persistence"]),
        performance_state=None if answer["performance_state"] is None else f"P{answer['performance_state']}",
        utilization=answer["utilization"],
        clock_reasons=None if reasons is None else clock_reasons(reasons),
        mig=None if answer["mig"] is None else bool(answer["mig"]),
        recovery=None if action is None else RECOVERY.get(action, f"action {action}"),
        processes=None if processes is None else tuple(GpuProcess(*process) for process in processes),
        link=PciLink(generation[0], generation[1], width[0], width[1]),
    )


# ---- in the process of its own


def query() -> dict[str, Any]:
    """Ask NVML for all; what it refuses is None, with NVML's words under `unknown`."""
    try:
        import pynvml as nvml
    except ImportError:
        return {"error": NO_BINDINGS}
    unknown: dict[str, str] = {}

    def ask(name: str, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except (nvml.NVMLError, AttributeError) as error:  # older bindings lack newer names
            unknown.setdefault(name, f"NVML: {error}")
            return None

    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return {"error": f"NVML: {error}"}
    try:
        count = ask("gpus", nvml.nvmlDeviceGetCount) or 0
        found = (ask("gpus", partial(nvml.nvmlDeviceGetHandleByIndex, index)) for index in range(count))
        handles = [handle for handle in found if handle is not None]
        return {
            "driver": ask("driver", nvml.nvmlSystemGetDriverVersion),
            "cuda": ask("cuda", nvml.nvmlSystemGetCudaDriverVersion),
            "gpus": [_asked(nvml, handle, ask) for handle in handles],
            "pairs": [
                (
                    first,
                    second,
                    ask("pairs", partial(nvml.nvmlDeviceGetTopologyCommonAncestor, one, other)),
                    ask("pairs", partial(nvml.nvmlDeviceGetP2PStatus, one, other, _PEER_READ)),
                )
                for first, one in enumerate(handles)
                for second, other in enumerate(handles)
                if first < second
            ],
            "unknown": unknown,
        }
    finally:
        ask("shutdown", nvml.nvmlShutdown)


def _asked(nvml: Any, gpu: Any, ask: Callable[[str, Callable[[], Any]], Any]) -> dict[str, Any]:
    def memory() -> list[int]:
        answer = nvml.nvmlDeviceGetMemoryInfo(gpu)
        return [answer.total, answer.used]

    def processes() -> list[tuple[int, str, int | None]]:
        running = [*listed("nvmlDeviceGetComputeRunningProcesses"), *listed("nvmlDeviceGetGraphicsRunningProcesses")]
        return [(pid, "", size) for pid, size in {each.pid: each.usedGpuMemory for each in running}.items()]

    def listed(name: str) -> list[Any]:
        try:
            return list(getattr(nvml, f"{name}_v3")(gpu))
        except nvml.NVMLError_FunctionNotFound:  # drivers before R510
            return list(getattr(nvml, f"{name}_v2")(gpu))

    def recovery() -> int:
        (answer,) = nvml.nvmlDeviceGetFieldValues(gpu, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        if answer.nvmlReturn:  # drivers before R570 do not know it
            raise nvml.NVMLError(answer.nvmlReturn)
        return int(answer.value.uiVal)

    def link(current: Callable[[Any], int], limit: Callable[[Any], int]) -> Callable[[], list[int]]:
        return lambda: [current(gpu), limit(gpu)]

    return {
        "name": ask("name", lambda: nvml.nvmlDeviceGetName(gpu)),
        "uuid": ask("uuid", lambda: nvml.nvmlDeviceGetUUID(gpu)),
        "minor": ask("minor", lambda: nvml.nvmlDeviceGetMinorNumber(gpu)),
        "pci_bus": ask("pci_bus", lambda: nvml.nvmlDeviceGetPciInfo(gpu).busId),
        "compute_capability": ask("compute_capability", lambda: nvml.nvmlDeviceGetCudaComputeCapability(gpu)),
        "memory": ask("memory", memory),
        "bar1": ask("bar1_bytes", lambda: nvml.nvmlDeviceGetBAR1MemoryInfo(gpu).bar1Total),
        "persistence": ask("persistence", lambda: nvml.nvmlDeviceGetPersistenceMode(gpu)),
        "performance_state": ask("performance_state", lambda: nvml.nvmlDeviceGetPerformanceState(gpu)),
        "utilization": ask("utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
        # the older name, which every driver has
        "clock_reasons": ask("clock_reasons", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
        "mig": ask("mig", lambda: nvml.nvmlDeviceGetMigMode(gpu)[0]),
        "recovery": ask("recovery", recovery),
        "processes": ask("processes", processes),
        "pcie": ask("link", link(nvml.nvmlDeviceGetCurrPcieLinkGeneration, nvml.nvmlDeviceGetMaxPcieLinkGeneration)),
        "pcie_width": ask("link", link(nvml.nvmlDeviceGetCurrPcieLinkWidth, nvml.nvmlDeviceGetMaxPcieLinkWidth)),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(query()))
