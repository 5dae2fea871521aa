"""cuda_toolkit: a CUDA toolkit, from PyPI, from NVIDIA's packages or runfile, or one that the machine has already.

Each method has a file of its own (`toolkit_wheels`, `toolkit_apt`, `toolkit_runfile`); what holds for all is here:
the proof that nvcc works (`toolkit_proof`), and the link that builds may find the toolkit by (`toolkit_link`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.apt_repository import Repository
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan, Prediction, Unchanged
from crossgrade.modules.files import absolute
from crossgrade.modules.toolkit_proof import prove, wanted_proof
from crossgrade.modules.toolkit_wheels import base_python
from crossgrade.modules.toolkits import RECORD, Toolkit, Work, is_of_version
from crossgrade.playbook.arguments import argument

if TYPE_CHECKING:
    from crossgrade.modules.toolkit_link import LinkState

__all__ = ["MODULE", "RECORD", "Arguments", "base_python"]  # two of them for those who build with a toolkit

Method = Literal["wheels", "existing", "apt", "runfile"]


@dataclass(frozen=True)
class Arguments:
    """Wheels are resolved to an exact, hashed lock at plan time; apt's transaction is simulated and judged then, and
    never touches the driver; `existing` only checks what is there."""

    version: str = argument(doc="The CUDA version: `13.0` for the newest 13.0.x, or more exact, `13.0.2`.")
    method: Method = argument(
        doc="`wheels`: PyPI's dist cuda-toolkit, into the store. `existing`: a toolkit that the machine has. `apt`: "
        "NVIDIA's packages, as root. `runfile`: NVIDIA's installer, into the store or to `path`.",
        default="wheels",
    )
    components: tuple[str, ...] = argument(
        doc="Extras of cuda-toolkit for `wheels`: nvcc, nvvm, crt, cccl, cudart, nvrtc, cublas, and so on.",
        default=("nvcc", "cccl", "cudart"),
    )
    path: str | None = argument(
        doc="Where the toolkit lies (`existing`, `apt`; by default /usr/local/cuda-VERSION), or where a runfile "
        "installs to (by default into the store).",
        default=None,
    )
    packages: tuple[str, ...] = argument(
        doc="What apt installs, by default cuda-toolkit-VERSION. Packages of the driver are refused.", default=()
    )
    repository: Repository | None = argument(
        doc="For `apt`: NVIDIA's repository, added when apt does not know it: `url`, `key` (a file), `fingerprint`.",
        default=None,
    )
    allow_upgrades: bool = argument(
        doc="For `apt`: let installed packages become newer, which cannot be taken back.", default=False
    )
    lock_timeout: float = argument(doc="Seconds to wait for dpkg's lock.", default=600.0)
    runfile: str | None = argument(doc="The path or address of NVIDIA's runfile.", default=None)
    sha256: str | None = argument(doc="The sha256 of the runfile; required with it.", default=None)
    link: str | None = argument(
        doc="A link to point at the toolkit, such as /usr/local/cuda. Without it no link is touched.", default=None
    )
    prove_for: tuple[str, ...] | None = argument(
        doc='What nvcc is proved for by compiling, linking and inspecting a small program: "12.0f", "12.0a", '
        '"9.0+PTX". By default 12.0f, or 12.0 before CUDA 12.9. An empty list leaves the proof out.',
        default=None,
    )


@dataclass(frozen=True)
class State:
    """`work` when something is to be done for `toolkit` to be there; `link` when one is to lead to it."""

    toolkit: Toolkit
    work: Work | None
    link: LinkState | None


# ---- inspect


def inspect(arguments: Arguments, host: HostView) -> State:
    found = _look(arguments, host)
    toolkit = found.toolkit if isinstance(found, Work) else _proved(arguments, found, host)
    link = None
    if arguments.link is not None:
        from crossgrade.modules.toolkit_link import look_at_link

        link = look_at_link(absolute(arguments.link, host), toolkit.cuda_home, host)
    return State(toolkit, found if isinstance(found, Work) else None, link)


def _look(arguments: Arguments, host: HostView) -> Toolkit | Work:
    if arguments.method == "wheels":
        from crossgrade.modules.toolkit_wheels import look
    elif arguments.method == "apt":
        from crossgrade.modules.toolkit_apt import look
    elif arguments.method == "runfile":
        from crossgrade.modules.toolkit_runfile import look
    else:
        return _existing(arguments, host)
    return look(arguments, host)


def _proved(arguments: Arguments, toolkit: Toolkit, host: HostView) -> Toolkit:
    """The toolkit with its proof, made now where it was not made when it was installed. Writes nothing into it."""
    home = Path(toolkit.cuda_home)
    if host.check_mode and not home.exists():
        return toolkit  # an earlier task of the plan will make it
    has_runtime = (home / "include" / "cuda_runtime.h").exists()
    proof = wanted_proof(arguments.prove_for, toolkit.version, toolkit.nvcc is not None, has_runtime)
    if not set(proof.architectures) <= set(toolkit.proved):
        prove(home, proof.architectures, host)
    return replace(toolkit, proved=proof.architectures, not_proved=proof.reason)


def _existing(arguments: Arguments, host: HostView) -> Toolkit:
    """Raises ToolkitError where no whole toolkit is, TaskError when it is another version or cannot build."""
    from crossgrade.inspect.toolkit import read_toolkit as read_installed
    from crossgrade.inspect.toolkit import require_matched, stated_cuda_version
    from crossgrade.inspect.toolkit_parts import missing_for_builds

    home = absolute(arguments.path or f"/usr/local/cuda-{arguments.version}", host)
    found = read_installed(home, host.run)
    require_matched(found)
    version = found.nvcc_version or ""
    if not is_of_version((version, stated_cuda_version(home)), arguments.version):
        raise TaskError(
            f"{home} holds {found.name}, CUDA {arguments.version} is asked for",
            remedy="Give the `path` of the right one, or use `method: wheels`, which needs no root.",
        )
    # the wheels of a venv are there to run with: what builds want besides is a known list, so all of it is said
    in_venv = {"site-packages", "dist-packages"} & set(Path(found.real_home).parts)
    if in_venv and (missing := missing_for_builds(home)):
        raise TaskError(
            f"{home} belongs to a venv and cannot be built with: it lacks {'; '.join(missing)}",
            remedy="Use `method: wheels`, which makes a whole toolkit in the store and leaves the venv alone.",
        )
    digest = sha256(f"{found.real_home} {version}".encode()).hexdigest()[:24]
    return Toolkit(str(home), digest, version, found.nvcc, {})


# ---- plan


def plan(arguments: Arguments, state: State) -> Plan:
    toolkit, work = state.toolkit, state.work
    link = None
    if state.link is not None and not state.link.is_right:
        from crossgrade.modules.toolkit_link import plan_link

        link = plan_link(state.link)
    values = {**toolkit.values(), "link": arguments.link}
    if work is None and link is None:
        return Unchanged(f"CUDA {toolkit.version} is there", values)
    predicts = link.predicts if link else ()
    if work is not None:
        value: dict[str, JSON] = {**toolkit.values(), "versions": dict(toolkit.versions)}
        predicts = (Prediction("toolkit", toolkit.digest, value), *predicts)
    parts = [each.summary for each in (work, link) if each]
    differences = [difference for each in (work, link) if each for difference in each.differences]
    return Change(
        ", then ".join(parts),
        tuple(differences),
        values,
        predicts=predicts,
        payload={"toolkit": toolkit, "work": work},
        space=work.space if work else (),
    )


# ---- apply


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:
    toolkit: Toolkit = change.payload["toolkit"]
    if change.payload["work"] is not None:
        toolkit = _installer(arguments.method)(change.payload["work"], context)
    if arguments.link is not None:
        from crossgrade.modules.toolkit_link import look_at_link, plan_link, set_link

        # looked at anew: a package may have put the link into the hands of update-alternatives meanwhile
        link = look_at_link(absolute(arguments.link, context.host), toolkit.cuda_home, context.host)
        if not link.is_right:
            set_link(plan_link(link), context)
    return Outcome({**toolkit.values(), "link": arguments.link})


def _installer(method: Method) -> Any:
    if method == "apt":
        from crossgrade.modules.toolkit_apt import install
    elif method == "runfile":
        from crossgrade.modules.toolkit_runfile import install
    else:
        from crossgrade.modules.toolkit_wheels import install
    return install


def undo(record: Mapping[str, JSON], context: ApplyContext) -> str:
    """Take one step back: of files, of packages, of package lists, of a link, or of a half-made toolkit."""
    if "records" in record:
        from crossgrade.modules.file_undo import undo as undo_files

        return undo_files(record, context)
    method = record.get("method")
    if method == "apt":
        from crossgrade.modules import toolkit_apt

        return toolkit_apt.undo(record, context)
    if method == "lists":
        from crossgrade.modules.apt_source import undo_lists

        return undo_lists(record)
    if method == "runfile":
        from crossgrade.modules import toolkit_runfile

        return toolkit_runfile.undo(record)
    if method == "alternative":
        from crossgrade.modules.toolkit_link import undo_alternative

        return undo_alternative(record, context)
    if method == "kept link":
        from crossgrade.modules.toolkit_link import put_link_back

        return put_link_back(record, context, undoing=True)
    from crossgrade.modules.toolkit_wheels import undo as undo_wheels

    return undo_wheels(record)


MODULE = Module(
    name="cuda_toolkit",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    summary="A CUDA toolkit: from PyPI into the store, by apt, from a runfile, or as it is on the machine.",
)
