"""The method `apt` of cuda_toolkit: NVIDIA's packages of a toolkit, and never one of the driver's.

apt itself says beforehand what it would do (``apt-get --simulate``); that is judged (`apt_transaction`), shown, and
compared with what it then did. Which system apt works on is apt's own configuration: APT_CONFIG is honoured as apt
does, also when a run is taken back.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules import apt_source
from crossgrade.modules.apt_calls import Apt, find_apt
from crossgrade.modules.apt_transaction import (
    PackageChange,
    driver_rules,
    package_sizes,
    parse_simulation,
    refusals,
    removed_besides,
    unknown_packages,
)
from crossgrade.modules.contract import ApplyContext, Change, Difference, HostView, Space
from crossgrade.modules.file_operations import perform
from crossgrade.modules.files import absolute
from crossgrade.modules.toolkit_link import keep_link, put_link_back
from crossgrade.modules.toolkit_proof import Proof, prove, wanted_proof
from crossgrade.modules.toolkits import Toolkit, Work, package_suffix, release_of

if TYPE_CHECKING:
    from crossgrade.modules.cuda_toolkit import Arguments

INSTALL_SECONDS = 7200.0
LOG = "apt.log"


@dataclass(frozen=True)
class Transaction:
    """What is to be installed: the packages as they are asked for, and everything that comes with them."""

    requested: tuple[str, ...]
    changes: tuple[PackageChange, ...]
    source: apt_source.NewSource | None
    upgrades: bool
    lock_timeout: float
    proof: Proof
    keeps_link: bool


# ---- looking


def look(arguments: Arguments, host: HostView) -> Toolkit | Work:
    """Raises TaskError: no Debian, no such package, a transaction that is refused, no permission."""
    apt = find_apt(host)
    requested = requested_packages(arguments)
    names = [each.partition("=")[0] for each in requested]
    home = absolute(arguments.path or f"/usr/local/cuda-{release_of(arguments.version)}", host)
    installed = apt.installed()
    if all(_is_there(each, installed) for each in requested):
        there = toolkit_of(home, {name: installed[name] for name in names})
        return there if (home / "bin" / "nvcc").exists() else replace(there, nvcc=None)
    source = apt_source.look(arguments.repository, apt, host) if arguments.repository else None
    with apt_source.preview(source, apt) as options:
        simulated = apt.simulate(requested, options)
        if not simulated.succeeded:
            raise _not_possible(simulated.stdout + simulated.stderr, arguments, apt)
        changes = parse_simulation(simulated.stdout)
        _require_harmless(changes, upgrades=arguments.allow_upgrades)
        on_disk, to_download = package_sizes(apt.show(changes, options))
    apt.require_permission()
    versions = {change.name: change.after for change in changes if change.name in names}
    toolkit = toolkit_of(home, {name: versions.get(name) or installed.get(name, "") for name in names})
    proof = wanted_proof(arguments.prove_for, toolkit.version or arguments.version, True, True)
    toolkit = replace(toolkit, proved=proof.architectures, not_proved=proof.reason)
    if host.predicted("toolkit", toolkit.digest) is not None:
        return toolkit
    return Work(
        toolkit,
        f"install {', '.join(names)} by apt ({len(changes)} packages)"
        + (", which stay upgraded when the run is taken back" if any(c.action == "upgrade" for c in changes) else ""),
        (
            *(source.differences if source else ()),
            *(Difference(change.name, change.before, change.after) for change in changes),
        ),
        (Space(home, on_disk, f"CUDA {arguments.version}"), Space(apt.archives, to_download, "packages to download")),
        Transaction(
            requested, changes, source, arguments.allow_upgrades, arguments.lock_timeout, proof, arguments.link is None
        ),
    )


def requested_packages(arguments: Arguments) -> tuple[str, ...]:
    """What apt is asked for: `packages`, or the toolkit of the version (``cuda-toolkit-13-0=13.0.2*``)."""
    if arguments.packages:
        return tuple(arguments.packages)
    name = f"cuda-toolkit-{package_suffix(arguments.version)}"
    return (f"{name}={arguments.version}*",) if arguments.version.count(".") > 1 else (name,)


def _is_there(requested: str, installed: Mapping[str, str]) -> bool:
    name, _, version = requested.partition("=")
    return name in installed and fnmatchcase(installed[name], version or "*")


def toolkit_of(home: Path, versions: Mapping[str, str]) -> Toolkit:
    """The toolkit that these packages are, by the version of the first (``13.0.2-1``)."""
    version = next(iter(versions.values()), "").partition("-")[0].rpartition(":")[2]
    listed = " ".join(f"{name}={versions[name]}" for name in sorted(versions))
    digest = sha256(f"apt {home} {listed}".encode()).hexdigest()[:24]
    return Toolkit(str(home), digest, version, str(home / "bin" / "nvcc"), dict(versions))


def _not_possible(said: str, arguments: Arguments, apt: Apt) -> TaskError:
    unknown = unknown_packages(said)
    if not unknown:
        lines = [line for line in said.splitlines() if line.startswith(("E:", " ")) and line.strip()]
        return TaskError(f"apt cannot install it: {' '.join(' '.join(lines).split()) or said.strip()}")
    known = apt.names_like("cuda-toolkit-")
    others = f"; it knows {', '.join(known)}" if known else ": NVIDIA's repository is missing here"
    if arguments.repository or known:
        return TaskError(
            f"apt knows no {', '.join(unknown)}{others}",
            remedy="Ask for one of those, or bring the lists up to date: apt-get update.",
        )
    url = apt_source.nvidia_repository() or "the folder of this distribution below NVIDIA's compute/cuda/repos"
    return TaskError(
        f"apt knows no {', '.join(unknown)}{others}",
        remedy=f"Give `repository:` with its url ({url}), a file with its key and the key's fingerprint; or add it "
        "by NVIDIA's package cuda-keyring and run apt-get update; or use `method: wheels`, which needs no root.",
    )


def _require_harmless(changes: Sequence[PackageChange], *, upgrades: bool) -> None:
    reasons = refusals(changes, driver_rules(), upgrades=upgrades)
    if reasons:
        raise TaskError(
            f"apt is not let do this: {'; '.join(reasons)}",
            remedy="Ask for `cuda-toolkit-…` packages: `cuda` and `cuda-drivers` bring the driver along. For upgrades, "
            "bring the system up to date beforehand or say `allow_upgrades: true`. Or use `method: wheels`.",
        )


# ---- installing


def install(work: Work, context: ApplyContext) -> Toolkit:
    """Raises TaskError; what was done until then is in the journal, and `undo` takes it back."""
    transaction: Transaction = work.details
    apt = find_apt(context.host)
    home = Path(work.toolkit.cuda_home)
    if transaction.source is not None:
        perform(
            Change("add NVIDIA's repository to apt", payload={"operations": transaction.source.operations}), context
        )
        apt_source.read_lists(transaction.source, apt, context, transaction.lock_timeout, LOG)
    simulated = apt.simulate(transaction.requested)
    if not simulated.succeeded or parse_simulation(simulated.stdout) != transaction.changes:
        raise TaskError(
            "apt would now do something else than was planned a moment ago",
            remedy="Somebody else works with apt, or its lists changed: run again.",
        )
    kept = keep_link(home.parent / "cuda", context)
    new = {change.name: change.after for change in transaction.changes if change.action == "install"}
    names = [f"{name}={version}" for name, version in _exact(transaction).items()]
    before = apt.installed()
    with context.step(
        f"install {len(new)} packages by apt",
        {"method": "apt", "packages": dict(new), "environment": dict(apt.environment)},
        by_hand=[f"apt-get purge {shlex.join(new)}"],
    ):
        context.progress(f"installing {len(transaction.changes)} packages by apt")
        apt.change(
            ["--no-install-recommends", "--no-remove", "install", *names], context, transaction.lock_timeout, LOG
        )
        _require_as_planned(before, apt.installed(), transaction.changes)
        if transaction.keeps_link:
            put_link_back(kept, context)
        if not (home / "bin" / "nvcc").is_file():
            raise TaskError(f"the packages are installed, but there is no {home}/bin/nvcc", remedy="Say the `path`.")
        if transaction.proof.architectures:
            context.progress("proving nvcc")
            prove(home, transaction.proof.architectures, context.host)
    return work.toolkit


def _exact(transaction: Transaction) -> dict[str, str]:
    versions = {change.name: change.after for change in transaction.changes}
    names = [each.partition("=")[0] for each in transaction.requested]
    return {name: versions[name] for name in names if name in versions}


def _require_as_planned(before: Mapping[str, str], after: Mapping[str, str], planned: Sequence[PackageChange]) -> None:
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    expected = {change.name for change in planned}
    if changed != expected:
        names = [*(f"also {name}" for name in sorted(changed - expected)), *(f"not {n}" for n in expected - changed)]
        raise TaskError(f"apt did something else than it had said: {', '.join(names)}")


# ---- undo


def undo(record: Mapping[str, JSON], context: ApplyContext) -> str:
    """Remove exactly the packages that were newly installed. Raises TaskError when others need them by now."""
    packages, around = record["packages"], record["environment"]
    if not isinstance(packages, dict) or not isinstance(around, dict):
        return ""
    apt = find_apt(context.host, {str(name): str(value) for name, value in around.items()})
    there = {name: version for name, version in apt.there().items() if name in packages}
    if not there:
        return ""
    apt.settle(context)
    simulated = apt.simulate(list(there), verb="purge")
    others = removed_besides(parse_simulation(simulated.stdout), there)
    if not simulated.succeeded or others:
        raise TaskError(
            f"{', '.join(there)} cannot be removed without {', '.join(others) or 'more'}: "
            f"somebody has installed what needs them since; {simulated.stderr.strip()}"
        )
    apt.change(["purge", *there], context, apt_source.UNDO_LOCK_SECONDS, LOG)
    return f"removed {len(there)} packages"
