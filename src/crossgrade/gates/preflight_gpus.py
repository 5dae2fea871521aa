"""The checks of the preflight gate that are about GPUs and their driver. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from crossgrade.facts.architectures import compiles_for, first_release_for
from crossgrade.facts.gpus import Gpu, library_version, release_numbers
from crossgrade.gates.preflight import Answer, Observed, Target
from crossgrade.gates.verdict import counted, joined
from crossgrade.inspect.gpu_architecture import parse_compute_capability
from crossgrade.inspect.toolkit import judge_driver
from crossgrade.jsontype import JSON
from crossgrade.knowledge import table

# A GPU without any process is idle; one that hangs after a failed transfer stands at 100%
_BUSY_PERCENT = 90
_SLOW = {
    "hw_slowdown": "Look at power supply and temperature: nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE.",
    "hw_thermal_slowdown": "Cool the machine, and measure again afterwards.",
    "sw_thermal_slowdown": "Cool the machine, and measure again afterwards.",
    "hw_power_brake_slowdown": "Look at the power supply: it asks the GPU to slow down.",
}
_RESET = "Stop what uses the GPUs, then nvidia-smi --gpu-reset, or reboot; no other software cures it."


def _no_gpus(observed: Observed) -> str:
    return observed.gpus.unknown.get("gpus", "no GPU is seen")


def driver(observed: Observed, target: Target) -> Sequence[Answer]:
    """Is the driver new enough for the target? Its own PTX needs one as new as the release."""
    version = observed.gpus.kernel_module or observed.gpus.driver
    if version is None:
        return [Answer("not run", observed.gpus.unknown.get("driver") or _no_gpus(observed))]
    judged = judge_driver(version, target.cuda)
    evidence: dict[str, JSON] = {"driver": version, "cuda": target.cuda}
    if judged.fits is None:
        return [Answer("not run", judged.message, evidence=evidence)]
    if not judged.fits:
        return [Answer("failure", judged.message, judged.remedy, evidence)]
    paired = next(
        (str(row["paired"]) for row in table("drivers") if row["cuda"] == target.cuda and "paired" in row), ""
    )
    if paired and release_numbers(version) < release_numbers(paired):
        remedy = f"Install driver {paired} or newer, unless everything has machine code for the GPUs (gpu_arch_check)."
        return [Answer("warning", judged.message, remedy, evidence)]
    return [Answer("passed", judged.message, evidence=evidence)]


def driver_library(observed: Observed, target: Target) -> Sequence[Answer]:  # noqa: ARG001 (the checks' shape)
    """Are the loaded module and the driver's libraries of one version?"""
    facts = observed.gpus
    module, library = facts.kernel_module, library_version(facts.nvml_library)
    evidence: dict[str, JSON] = {"kernel_module": module, "nvml_library": facts.nvml_library}
    remedy = "Reboot, or install the libraries of the loaded module's version."
    said = next((why for why in facts.unknown.values() if "version mismatch" in why.lower()), "")
    if said or (module and library and module != library):
        return [
            Answer(
                "failure",
                f"module {module}, NVML {library or 'of another version'}: {said or 'they differ'}",
                remedy,
                evidence,
            )
        ]
    if module is None:
        return [Answer("not run", facts.unknown.get("kernel_module", "the module is not loaded"))]
    if library is None and facts.source not in ("nvml", "nvidia-smi"):
        return [Answer("not run", facts.unknown.get("nvml_library", "the version of NVML is not known"))]
    return [Answer("passed", f"module and libraries are of {module}", evidence=evidence)]


def forward_compatibility(observed: Observed, target: Target) -> Sequence[Answer]:  # noqa: ARG001
    """Does a libcuda.so.1 that is not the driver's own come first?"""
    module = observed.gpus.kernel_module
    found = []
    for library in observed.system.cuda_driver_libraries:
        compatible = "compat" in library.target.split("/")
        if compatible or (module and library.version and library.version != module):
            of = f" of driver {library.version}" if library.version else ""
            where = f"{library.origin} leads programs to {library.target}{of}"
            loaded = f", while module {module} is loaded" if module else ""
            remedy = (
                "Take it out of LD_LIBRARY_PATH."
                if library.origin == "LD_LIBRARY_PATH"
                else ("Take its folder out of /etc/ld.so.conf.d and call ldconfig.")
            )
            message = f"{where}{loaded}: forward compatibility serves data-centre GPUs only (error 804 elsewhere)"
            found.append(Answer("failure", message, remedy, {"path": library.path, "target": library.target}))
    for holder in observed.holders.holders:
        folders = [part for part in holder.library_path.split(":") if "compat" in part.split("/")]
        if holder.from_venv and folders:
            message = f"process {holder.pid} runs with {folders[0]} on LD_LIBRARY_PATH"
            found.append(Answer("warning", message, "Leave it out of the new launch.", {"pid": holder.pid}))
    libraries: list[JSON] = [library.target for library in observed.system.cuda_driver_libraries]
    return found or [
        Answer("passed", "no other libcuda.so.1 comes before the driver's", evidence={"libcuda": libraries})
    ]


def gpu_architecture(observed: Observed, target: Target) -> Sequence[Answer]:
    """Does the target's compiler know the GPUs, and the architecture that is built for?"""
    found = []
    gpus = [gpu for gpu in observed.gpus.gpus if gpu.compute_capability]
    if not gpus:
        why = _no_gpus(observed) if not observed.gpus.gpus else "the GPUs' compute capability is not known"
        found.append(Answer("not run", observed.gpus.unknown.get("compute_capability", why)))
    for capability in sorted({str(gpu.compute_capability) for gpu in gpus}):
        which = joined(str(gpu.index) for gpu in gpus if gpu.compute_capability == capability)
        found.append(
            _known(f"sm_{capability.replace('.', '')}", f"GPU {which} (compute capability {capability})", target)
        )
    if target.gpu:
        major, minor = parse_compute_capability(target.gpu)
        suffix = target.gpu[-1] if target.gpu[-1] in "af" else ""
        found.append(_known(f"sm_{major}{minor}{suffix}", f"the build for {target.gpu}", target))
        others = sorted({str(gpu.compute_capability) for gpu in gpus} - {f"{major}.{minor}"})
        if others and len(others) == len({gpu.compute_capability for gpu in gpus}):
            message = f"the build is for {target.gpu}, and the GPUs are of {joined(others)}"
            found.append(Answer("warning", message, f"Build for {others[0]}.", {"gpus": list(others)}))
    return found


def _known(architecture: str, what: str, target: Target) -> Answer:
    knows = compiles_for(architecture, target.cuda)
    evidence: dict[str, JSON] = {"architecture": architecture, "cuda": target.cuda}
    if knows is None:
        return Answer("not run", f"whether CUDA {target.cuda} knows {architecture} is not in the table", "", evidence)
    if knows:
        return Answer("passed", f"CUDA {target.cuda} compiles for {architecture}: {what}", evidence=evidence)
    first = first_release_for(architecture)
    if first and release_numbers(first) > release_numbers(target.cuda):
        message = f"{what} needs nvcc {first} or newer for {architecture}, and the target is CUDA {target.cuda}"
        return Answer("failure", message, f"Take CUDA {first} or newer.", evidence)
    message = f"CUDA {target.cuda} does not compile for {architecture} any more, or never did: {what}"
    return Answer("failure", message, "Stay with a release that does (knowledge/ptxas_architectures.yml).", evidence)


def gpus_free(observed: Observed, target: Target) -> Sequence[Answer]:  # noqa: ARG001
    """Is anybody at the GPUs but the server that is to be replaced?"""
    gpus = observed.gpus.gpus
    if not gpus:
        return [Answer("not run", _no_gpus(observed))]
    if any(gpu.processes is None for gpu in gpus) and observed.holders.hidden:
        return [Answer("not run", "who holds the GPUs is not known: " + observed.holders.unknown.get("holders", ""))]
    found = []
    holders = [holder for holder in observed.holders.holders if holder.gpus]
    strangers = [holder for holder in holders if not holder.from_venv]
    for holder in strangers:
        unit = f" of {holder.unit}" if holder.unit else ""
        message = f"process {holder.pid}{unit} ({holder.command[:60]}) holds GPU {joined(map(str, holder.gpus))}"
        remedy = "Stop it before the maintenance window, or keep the new server off that GPU."
        found.append(Answer("warning", message, remedy, {"pid": holder.pid, "gpus": list(holder.gpus)}))
    held = {index for holder in holders for index in holder.gpus}
    for gpu in gpus:
        nobody = not gpu.processes and gpu.index not in held
        if nobody and gpu.utilization is not None and gpu.utilization >= _BUSY_PERCENT:
            evidence: dict[str, JSON] = {"gpu": gpu.index, "utilization": gpu.utilization}
            message = f"GPU {gpu.index} is at {gpu.utilization}% and no process holds it"
            if observed.system.inside:  # whose process may be one that is not seen from in here
                remedy = "Look from outside of this container who holds it; with nobody there, it hangs."
                found.append(Answer("warning", message, remedy, evidence))
            else:
                found.append(Answer("failure", f"{message}: it hangs", _RESET, evidence))
        if gpu.recovery not in (None, "None"):
            message = f"GPU {gpu.index} must be recovered, the driver says: {gpu.recovery}"
            found.append(Answer("failure", message, _RESET, {"gpu": gpu.index, "recovery": gpu.recovery}))
        if gpu.mig:
            found.append(Answer("warning", f"GPU {gpu.index} is split (MIG)", "", {"gpu": gpu.index}))
    own = joined(str(holder.pid) for holder in holders if holder.from_venv)
    return found or [
        Answer("passed", f"only the environment's own processes ({own}) hold GPUs" if own else "all are free")
    ]


def gpu_clocks(observed: Observed, target: Target) -> Sequence[Answer]:  # noqa: ARG001
    """Does something hold the clocks down, so that measurements would not tell?"""
    gpus = observed.gpus.gpus
    if not gpus or all(gpu.clock_reasons is None for gpu in gpus):
        why = _no_gpus(observed) if not gpus else "the driver does not say what holds the clocks down"
        return [Answer("not run", observed.gpus.unknown.get("clock_reasons", why))]
    found = []
    for reason, remedy in _SLOW.items():
        slow = [gpu.index for gpu in gpus if reason in (gpu.clock_reasons or ())]
        if slow:
            message = f"{reason} holds GPU {joined(map(str, slow))} down: benchmarks would not tell"
            found.append(Answer("warning", message, remedy, {"reason": reason, "gpus": list(slow)}))
    if off := [gpu.index for gpu in gpus if gpu.persistence is False]:
        message = f"persistence mode is off on GPU {joined(map(str, off))}: each first use wakes it for seconds"
        found.append(
            Answer("warning", message, "Enable nvidia-persistenced, or nvidia-smi -pm 1.", {"gpus": list(off)})
        )
    return found or [Answer("passed", f"nothing slows {counted(len(gpus), 'GPU')} down")]


def gpu_links(observed: Observed, target: Target) -> Sequence[Answer]:  # noqa: ARG001
    """Has each GPU all the lanes that it and its slot could have?"""
    known = [gpu for gpu in observed.gpus.gpus if gpu.link.width and gpu.link.width_limit]
    if not known:
        why = "the widths of their links are not known" if observed.gpus.gpus else _no_gpus(observed)
        return [Answer("not run", observed.gpus.unknown.get("link", why))]
    narrow = [gpu for gpu in known if (gpu.link.width or 0) < (gpu.link.width_limit or 0)]
    remedy = "Look at the seat, the riser and the BIOS's lane settings of that slot."
    return [
        Answer(
            "warning",
            f"GPU {gpu.index} at {gpu.pci_bus} has {gpu.link.width} of {gpu.link.width_limit} PCIe lanes",
            remedy,
            {"gpu": gpu.index, "width": gpu.link.width, "limit": gpu.link.width_limit},
        )
        for gpu in narrow
    ] or [Answer("passed", f"{counted(len(known), 'GPU')} with all their PCIe lanes")]


def peer_access(observed: Observed, target: Target) -> Sequence[Answer]:  # noqa: ARG001
    """Are there settings under which traffic between GPUs is known to hang?"""
    gpus = observed.gpus.gpus
    if not gpus:
        return [Answer("not run", _no_gpus(observed))]
    if len(gpus) == 1:
        return [Answer("passed", "there is one GPU")]
    found = [_setting(name, message, list(evidence)) for name, message, evidence in _hanging(observed, gpus)]
    unreachable = [pair for pair in observed.gpus.pairs if pair.peer_read not in (None, "OK")]
    if unreachable:
        names: list[JSON] = [f"{pair.first}-{pair.second}: {pair.peer_read}" for pair in unreachable]
        message = (
            f"no peer access between {counted(len(unreachable), 'pair')} of GPUs: NCCL goes through host memory there"
        )
        found.append(Answer("warning", message, "", {"pairs": names}))
    if not observed.gpus.pairs or all(pair.peer_read is None for pair in observed.gpus.pairs):
        why = observed.gpus.unknown.get("pairs", "the driver was not asked")
        found.append(Answer("not run", f"whether GPUs reach each other is not known: {why}"))
    return found or [Answer("passed", f"{counted(len(observed.gpus.pairs), 'pair')} of GPUs reach each other")]


def bridge_redirection(observed: Observed, target: Target) -> Sequence[Answer]:  # noqa: ARG001
    """Does a bridge above the GPUs send their traffic through the root complex (ACS)?"""
    gpus = observed.gpus.gpus
    if len(gpus) < 2:
        return [] if gpus else [Answer("not run", _no_gpus(observed))]
    found = sorted({bridge for gpu in gpus for bridge in gpu.link.redirecting_bridges or ()})
    if found:
        message = f"ACS sends traffic between GPUs through the root complex at {counted(len(found), 'bridge')}"
        return [_setting("redirecting_acs", message, found)]
    if any(gpu.link.redirecting_bridges is None for gpu in gpus):
        return [Answer("not run", "the configuration of the bridges above the GPUs cannot be read", "Run it as root.")]
    return [Answer("passed", "no bridge above the GPUs redirects")]


def _hanging(observed: Observed, gpus: Sequence[Gpu]) -> list[tuple[str, str, list[str]]]:
    """The settings of `knowledge/peer_settings.yml` that are found here, with words and where."""
    found = []
    if translated := [gpu.pci_bus for gpu in gpus if (gpu.link.iommu or "").startswith("DMA")]:
        message = f"the IOMMU translates the addresses of {counted(len(translated), 'GPU')}"
        found.append(("translating_iommu", message, translated))
    forced = observed.gpus.parameters.get("RegistryDwords", "")
    if "ForceP2P" in forced:
        found.append(("forced_peer_access", f"the module forces peer access ({forced})", [forced]))
    return found


def _setting(name: str, message: str, where: list[str]) -> Answer:
    row = next(row for row in table("peer_settings") if row["setting"] == name)
    evidence: dict[str, JSON] = {"setting": name, "where": list(where), "source": row["source"]}
    return Answer("warning", f"{message}, which is known to hang", str(row["remedy"]), evidence)
