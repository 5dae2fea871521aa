"""`facts`: what this server is, in sections; as JSON, or as an overview for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from crossgrade.commands.common import guarded, named_venv, request_from
from crossgrade.engine.request import Request
from crossgrade.errors import ExitCode, WrongOptionsError
from crossgrade.facts.server import SECTIONS, Server
from crossgrade.gates.verdict import counted, joined
from crossgrade.inspect.toolkit import mix_problem
from crossgrade.places import shown_bytes
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line

if TYPE_CHECKING:
    from crossgrade.facts.compilers import CompilerFacts
    from crossgrade.facts.gpus import Gpu, GpuFacts
    from crossgrade.facts.holders import HolderFacts
    from crossgrade.facts.system import SystemFacts
    from crossgrade.facts.toolkits import ToolkitsFacts
    from crossgrade.facts.units import UnitFacts
    from crossgrade.facts.venv import VenvFacts

Options = Mapping[str, Any]
SCHEMA = 2


def facts_command(options: Options) -> int:
    """Exit code 0, also where something could not be asked: that is said."""
    return guarded(lambda: _facts(options, request_from(options, "facts")))


def _facts(options: Options, request: Request) -> int:
    sections = [name.strip() for name in options["only"].split(",") if name.strip()] or list(SECTIONS)
    if wrong := [name for name in sections if name not in SECTIONS]:
        raise WrongOptionsError(f"facts has no section {wrong[0]!r}", remedy=f"There are: {', '.join(SECTIONS)}.")
    server = Server(venv=named_venv(options, request), root=request.root)
    if options["json"]:
        sys.stdout.write(json.dumps({"schema": SCHEMA, **server.to_json(sections)}, indent=2, default=str) + "\n")
        return ExitCode.DONE
    terminal = Terminal(sys.stdout)
    for name in sections:
        section = server.section(name)
        terminal.write([Line(name, "heading")])
        terminal.write(Line(f"  {line}") for line in (_OVERVIEWS[name](section) if section is not None else _NO_VENV))
        unknown = {} if section is None else section.unknown
        terminal.write(Line(f"  {what} not known: {why}", "faint") for what, why in unknown.items())
    return ExitCode.DONE


_NO_VENV = ("none is named: --venv PATH",)


def _known(value: object) -> str:
    return "not known" if value is None else str(value)


def _bytes(size: int | None) -> str:
    return "not known" if size is None else shown_bytes(size)


def _system(facts: SystemFacts) -> Iterator[str]:
    inside = f", inside {facts.inside}" if facts.inside else ""
    yield f"{facts.system}, kernel {facts.kernel}, {facts.architecture}{inside}"
    yield f"glibc {_known(facts.glibc)}, libstdc++ with GLIBCXX_{_known(facts.glibcxx)}"
    limit = "" if facts.memory_limit_bytes is None else f", limited to {shown_bytes(facts.memory_limit_bytes)}"
    memory = f"{_bytes(facts.memory_bytes)} memory ({_bytes(facts.memory_available_bytes)} available{limit})"
    yield f"{counted(facts.processors, 'processor')}, {memory}, /dev/shm {_bytes(facts.shared_memory_bytes)}"
    for disk in facts.disks:
        room = f"{shown_bytes(disk.free_bytes)} of {shown_bytes(disk.size_bytes)} free"
        read_only = ", read-only" if disk.read_only else ""
        yield f"disk {disk.mount_point} ({disk.filesystem}{read_only}): {room}, for {joined(disk.places)}"
    yield from (f"a reboot is pending: {reason}" for reason in facts.reboot)
    if facts.iommu_groups or facts.iommu_parameters:
        words = ", ".join(facts.iommu_parameters) or "no kernel parameter"
        yield f"IOMMU: {counted(facts.iommu_groups, 'group')} ({words})"
    for library in facts.cuda_driver_libraries:
        yield f"libcuda.so.1 of {library.origin}: {library.target}"
    yield from (f"{name}: {value}" for name, value in facts.proxies.items())
    yield from (f"{name}={value}" for name, value in facts.variables.items())


def _gpus(facts: GpuFacts) -> Iterator[str]:
    if facts.driver or facts.kernel_module:
        kind = f", {facts.kernel_module_kind}" if facts.kernel_module_kind else ""
        disk = f", {facts.installed_module} on disk" if facts.installed_module else ""
        module = f"module {_known(facts.kernel_module)} loaded{kind}{disk}"
        yield f"driver {_known(facts.driver)}, CUDA {_known(facts.cuda)}; {module} (asked: {facts.source or 'nobody'})"
    yield from (_gpu(gpu) for gpu in facts.gpus)
    if facts.pairs:
        for what, values in (
            ("paths", [pair.path for pair in facts.pairs]),
            ("peer access", [pair.peer_read for pair in facts.pairs]),
        ):
            counts = {value: values.count(value) for value in values}
            yield f"{what} between GPUs: " + ", ".join(f"{_known(value)} ({count})" for value, count in counts.items())
    if not facts.gpus:
        yield "no GPU"


def _gpu(gpu: Gpu) -> str:
    link = gpu.link
    parts = [
        f"compute capability {_known(gpu.compute_capability)}",
        f"{_bytes(gpu.memory_used_bytes)} of {_bytes(gpu.memory_bytes)} used",
        f"PCIe {_known(link.generation_limit)} x{_known(link.width)} of x{_known(link.width_limit)}",
        f"NUMA {link.numa_node}" if link.numa_node is not None else "",
        f"IOMMU {link.iommu}" if link.iommu else "",
        {True: "persistence on", False: "persistence off", None: ""}[gpu.persistence],
        f"held down by {', '.join(gpu.clock_reasons)}" if gpu.clock_reasons else "",
        counted(len(gpu.processes), "process", "processes") if gpu.processes else "",
    ]
    return f"{gpu.index}  {gpu.name} at {gpu.pci_bus}: " + ", ".join(part for part in parts if part)


def _toolkits(facts: ToolkitsFacts) -> Iterator[str]:
    for each in facts.toolkits:
        toolkit = each.facts
        manager = each.manager or "nobody claims it"
        versions = f"nvcc {_known(toolkit.nvcc_version)}, headers {_known(toolkit.header_version)}"
        limit = f"gcc up to {_known(toolkit.newest_gcc)}"
        yield f"{toolkit.home}: {versions}, {limit} ({manager}); by {joined(each.origins)}"
        if problem := mix_problem(toolkit):
            yield f"  {problem}"
    local = facts.local_cuda
    chain = f" to {' -> '.join(local.chain)}, made by {local.manager}" if local.chain else ""
    yield f"/usr/local/cuda: {local.kind}{chain}"
    yield from facts.problems


def _compilers(facts: CompilerFacts) -> Iterator[str]:
    for compiler in facts.compilers:
        lacks = ", cannot compile C++" if compiler.compiles_cpp is False else ""
        yield f"{compiler.command} {compiler.version or 'not known'} ({compiler.path}{lacks}){compiler.problem}"
    yield from (f"for {each.toolkit}: {each.message}" for each in facts.toolkits)


def _environment(facts: VenvFacts) -> Iterator[str]:
    maker = f" {facts.maker}" if facts.maker else ""
    python = f"Python {_known(facts.python)} of {_known(facts.base)}"
    yield f"{facts.path}: {facts.kind or 'no environment'}{maker}, {python}"
    installers = ", ".join(f"{count} by {name or 'nobody known'}" for name, count in facts.installers.items())
    yield f"{counted(len(facts.dists), 'dist')}: {installers or 'none'}"
    for checkout in facts.checkouts:
        at = f"{checkout.branch or 'detached'} {checkout.commit[:12]}" if checkout.commit else "no commit"
        changed = f", {counted(len(checkout.changed), 'file')} changed" if checkout.changed else ""
        untracked = f", {checkout.untracked} untracked" if checkout.untracked else ""
        said = f"not known: {checkout.problem}" if checkout.problem else f"{at}{changed}{untracked}"
        yield f"{checkout.dist} is used from {checkout.path}: {said}"


def _holders(facts: HolderFacts) -> Iterator[str]:
    for holder in facts.holders:
        whose = [holder.unit, f"container {holder.container}" if holder.container else ""]
        held = f"GPU {', '.join(map(str, holder.gpus))}" if holder.gpus else ""
        words = [word for word in (holder.why, held, *whose) if word]
        yield f"{holder.pid}: {holder.command} ({'; '.join(words)})"
    if not facts.holders:
        yield "no process that can be seen runs from it or holds a GPU"


def _units(facts: UnitFacts) -> Iterator[str]:
    for unit in facts.units:
        state = ", ".join(word for word in (unit.active, unit.enabled) if word) or "state not known"
        yield f"{unit.name}{' (user)' if unit.user else ''}: {state}; {joined(unit.settings, 2)}"
    for container in facts.containers:
        yield f"{container.engine} {container.name} ({container.image}): {container.command}"
    if not facts.units and not facts.containers:
        yield "no unit names it, no container is seen"


_OVERVIEWS: dict[str, Callable[[Any], Iterator[str]]] = {
    "system": _system,
    "gpus": _gpus,
    "toolkits": _toolkits,
    "compilers": _compilers,
    "venv": _environment,
    "holders": _holders,
    "units": _units,
}
