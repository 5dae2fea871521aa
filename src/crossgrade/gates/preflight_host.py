"""The checks of the preflight gate that are about the machine below: compilers, room, network. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from crossgrade.facts.compilers import default_compiler
from crossgrade.facts.toolkits import first_of_release
from crossgrade.gates.preflight import Answer, Observed, Target
from crossgrade.gates.verdict import joined
from crossgrade.inspect.host_compiler import judge_host_compiler, known_newest_gcc
from crossgrade.inspect.toolkit import mix_problem
from crossgrade.jsontype import JSON
from crossgrade.places import shown_bytes

_LOCAL = ("localhost", "127.0.0.1")
_LOOKED_UP = ("CUDA_HOME", "CUDA_PATH", "PATH", "/usr/local/cuda")


def toolkit(observed: Observed, target: Target) -> Sequence[Answer]:
    """Is the target's toolkit whole where it is there, and would a build by itself take another one?"""
    found = []
    for each in observed.toolkits.toolkits:
        if each.facts.release == target.cuda and (problem := mix_problem(each.facts)):
            remedy = f"Install all of its parts in release {target.cuda}."
            found.append(Answer("failure", problem, remedy, {"home": each.facts.home}))
    local = observed.toolkits.local_cuda
    if local.kind == "dangling link":
        found.append(Answer("warning", f"/usr/local/cuda leads to {local.chain[-1]}, which is not there", "Remove it."))
    looked_up = [e for e in observed.toolkits.toolkits if e.origins[0].startswith(_LOOKED_UP)]
    if target.jobs and looked_up and looked_up[0].facts.release not in (target.cuda, None):
        first = looked_up[0]
        message = (
            f"a build that looks for nvcc itself takes {first.facts.name} ({first.origins[0]}: {first.facts.home})"
        )
        remedy = "Set CUDA_HOME for the build; extension_build and cuda_toolkit do it themselves."
        found.append(Answer("warning", message, remedy, {"home": first.facts.home}))
    there = first_of_release(observed.toolkits.toolkits, target.cuda)
    where = f"it is in {there.facts.home}" if there else "it is not installed yet, cuda_toolkit brings it"
    return found or [Answer("passed", f"CUDA {target.cuda}: {where}")]


def host_compiler(observed: Observed, target: Target) -> Sequence[Answer]:
    """Does the target's nvcc take the machine's g++? An installed toolkit says its limit itself."""
    if not target.jobs:
        return []
    compilers = observed.compilers.compilers
    there = first_of_release(observed.toolkits.toolkits, target.cuda)
    limit = there.facts.newest_gcc if there else None
    source = f"{there.facts.home}/include/crt/host_config.h" if there and limit else "knowledge/host_compilers.yml"
    newest = limit or known_newest_gcc(target.cuda)
    judged = judge_host_compiler(default_compiler(compilers), newest, f"CUDA {target.cuda}", compilers)
    evidence: dict[str, JSON] = {"newest_gcc": newest, "limit_from": source, "use": judged.use}
    if judged.fits is None:
        return [Answer("not run", judged.message, judged.remedy, evidence)]
    return [Answer("passed" if judged.fits else "failure", judged.message, judged.remedy, evidence)]


def disk(observed: Observed, target: Target) -> Sequence[Answer]:
    """Is there room for one more generation?"""
    if target.disk_bytes is None:
        return [Answer("not run", "how much one more generation takes is not known", "Give `disk` or `path`.")]
    found = next((disk for disk in observed.system.disks if target.place in disk.places), None)
    if found is None:
        return [Answer("not run", observed.system.unknown.get("disks", f"the disk of {target.place} is not known"))]
    evidence: dict[str, JSON] = {
        "free": found.free_bytes,
        "needed": target.disk_bytes,
        "mount_point": found.mount_point,
    }
    if found.read_only:
        return [Answer("failure", f"{found.mount_point} is read-only", "Mount it for writing.", evidence)]
    words = f"{shown_bytes(found.free_bytes)} free on {found.mount_point}, {shown_bytes(target.disk_bytes)} needed"
    if found.free_bytes < target.disk_bytes:
        return [Answer("failure", words, "Make room (crossgrade gc), or put the store on another disk.", evidence)]
    return [Answer("passed", words, evidence=evidence)]


def memory(observed: Observed, target: Target) -> Sequence[Answer]:
    """Is there memory for all jobs of the build at once?"""
    if not target.jobs:
        return []
    available = observed.system.memory_available_bytes
    if available is None:
        return [Answer("not run", observed.system.unknown.get("memory_available_bytes", "it is not known"))]
    limit = observed.system.memory_limit_bytes
    usable = available if limit is None else min(available, limit)
    needed = target.jobs * target.job_bytes
    evidence: dict[str, JSON] = {"usable": usable, "needed": needed, "jobs": target.jobs}
    each = f"{target.jobs} jobs at {shown_bytes(target.job_bytes)}"
    words = f"{shown_bytes(usable)} available, {shown_bytes(needed)} for {each}"
    if usable < needed:
        fitting = usable // target.job_bytes
        remedy = (
            f"Build with {fitting} jobs (MAX_JOBS={fitting})." if fitting else "Not one job fits: add memory or swap."
        )
        return [Answer("failure", words, remedy, evidence)]
    return [Answer("passed", words, evidence=evidence)]


def reboot(observed: Observed, target: Target) -> Sequence[Answer]:  # noqa: ARG001 (the checks' shape)
    """Would a reboot change kernel or driver? Better before the window than in the middle of it."""
    reasons = list(observed.system.reboot)
    loaded, installed = observed.gpus.kernel_module, observed.gpus.installed_module
    if loaded and installed and loaded != installed:
        reasons.append(f"module {installed} is on disk, {loaded} is loaded")
    if not reasons:
        return [Answer("passed", "no reboot is pending")]
    remedy = "Reboot before the window, and look whether the server comes back as it is."
    named: list[JSON] = [*reasons]
    return [Answer("warning", f"a reboot is pending: {joined(reasons)}", remedy, {"reasons": named})]


def proxies(observed: Observed, target: Target) -> Sequence[Answer]:  # noqa: ARG001
    """Would a proxy get the requests to the server on this very machine?"""
    found = observed.system.proxies
    set_ones = {name: value for name, value in found.items() if name != "no_proxy"}
    if not set_ones:
        return [Answer("passed", "no proxy is set")]
    excluded = {part.strip() for part in found.get("no_proxy", "").split(",")}
    missing = [name for name in _LOCAL if name not in excluded and "*" not in excluded]
    evidence: dict[str, JSON] = {"proxies": dict(found)}
    if missing:
        remedy = f"Add {','.join(_LOCAL)} to no_proxy in the server's environment too."
        message = (
            f"{joined(set_ones)} is set, and no_proxy lacks {joined(missing)}: requests to the server go to the proxy"
        )
        return [Answer("warning", message, remedy, evidence)]
    return [Answer("passed", f"{joined(set_ones)} is set, and not for this machine itself", evidence=evidence)]


def indexes(observed: Observed, target: Target) -> Sequence[Answer]:  # noqa: ARG001
    """Do the package indexes answer?"""
    if observed.indexes is None:
        return [Answer("not run", observed.no_indexes)]
    found = []
    for answer in observed.indexes:
        evidence: dict[str, JSON] = {"url": answer.url, "status": answer.status}
        if answer.status is None:
            remedy = "Check the network, the proxy (HTTPS_PROXY) and the index (UV_DEFAULT_INDEX or PIP_INDEX_URL)."
            found.append(Answer("failure", f"{answer.url} cannot be reached: {answer.problem}", remedy, evidence))
        elif answer.status in (401, 407):
            who = "the proxy" if answer.status == 407 else "it"
            message = f"{answer.url} answers {answer.status}: {who} wants a name and a password"
            found.append(Answer("failure", message, "Put them into the URL, or into a netrc file.", evidence))
        elif answer.status >= 500:
            message = f"{answer.url} answers {answer.status}"
            found.append(Answer("failure", message, "Try again later, or name a mirror.", evidence))
        else:
            found.append(Answer("passed", f"{answer.url} answers ({answer.status})", evidence=evidence))
    return found
