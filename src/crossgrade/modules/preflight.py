"""preflight: can this server take the target? Everything that stands in the way at once, in a plan too; only reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade.modules import gate
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.playbook.arguments import argument

if TYPE_CHECKING:
    from crossgrade.gates.preflight import Observed, Target
    from crossgrade.gates.verdict import Verdict


@dataclass(frozen=True)
class Arguments:
    """Asks this server for all that the upgrade needs of it, and lists every finding with its remedy."""

    cuda: str = argument(doc="The CUDA release that is to be, such as `13.0`.")
    gpu: str = argument(doc="The architecture that is built for, such as `12.0f`.", default="")
    jobs: int = argument(doc="Jobs that a build runs at once; 0 where nothing is built.", default=0)
    job_gigabytes: float | None = argument(doc="Memory of one job, in 10^9 bytes, where 5 is not right.", default=None)
    gigabytes: float | None = argument(
        doc="What one more generation takes on disk, in 10^9 bytes; without it, as much as the environment of today.",
        default=None,
    )
    path: Path | None = argument(
        doc="The environment of today; without it, the active generation where there is one.", default=None
    )
    online: bool = argument(doc="Whether the package indexes are asked; otherwise they count as not run.", default=True)
    index_url: str = argument(doc="The package index, as for `python_env`.", default="")
    extra_index_urls: tuple[str, ...] = argument(doc="More package indexes, as for `python_env`.", default=())
    ignore: tuple[str, ...] = argument(
        doc="Globs of names of checks whose findings are only noted, such as `proxies`.", default=()
    )
    on_not_run: gate.OnNotRun = argument(
        doc="What a verdict of `not run` (a check could not run, without a driver say) does to the run.", default="fail"
    )


@dataclass(frozen=True)
class State:
    """What was observed, and what it is to be held against."""

    observed: Observed
    target: Target


def inspect(arguments: Arguments, host: HostView) -> State:
    from crossgrade.facts.indexes import ask_indexes, index_urls
    from crossgrade.facts.server import Server
    from crossgrade.gates.preflight import Observed

    venv = gate.environment_of_today(arguments.path, host)
    server = Server(venv=venv, root=host.store.root, environment=host.environment)
    urls = index_urls(host.environment, arguments.index_url, arguments.extra_index_urls)
    observed = Observed(
        system=server.system_facts,
        gpus=server.gpus,
        toolkits=server.toolkits,
        compilers=server.compilers,
        holders=server.holders,
        indexes=ask_indexes(urls, host.environment) if arguments.online else None,
        no_indexes="`online: false`",
    )
    return State(observed, _target(arguments, venv, host.store.root))


def plan(arguments: Arguments, state: State) -> Plan:
    from crossgrade.gates.preflight import judge_preflight

    verdict = judge_preflight(state.observed, state.target, ignore=arguments.ignore)
    return Change(f"look whether this server can take CUDA {arguments.cuda}", payload={"verdict": verdict})


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:
    verdict: Verdict = change.payload["verdict"]
    not_run = verdict.outcome == "not run"
    message = f"not run: {verdict.reason}" if not_run else verdict.reason
    if context.host.check_mode:  # a run shows the findings of a verdict, a plan shows the message alone
        shown = [finding for finding in verdict.findings if finding.level != "note"]
        message = "\n".join([message, *(f"{each.level}: {each.subject}: {each.message}" for each in shown)])
    return Outcome(
        values=gate.verdict_values(verdict),
        changed=False,
        failed=verdict.outcome == "failed" or (not_run and arguments.on_not_run == "fail"),
        message=message,
        verdict=verdict,
    )


def _target(arguments: Arguments, venv: Path | None, root: Path) -> Target:
    from crossgrade.facts.tree import tree_bytes
    from crossgrade.gates.preflight import Target
    from crossgrade.knowledge import table

    known = next(row["bytes"] for row in table("build_memory") if row["of"] == "job")
    needed = arguments.gigabytes
    return Target(
        cuda=arguments.cuda,
        gpu=arguments.gpu,
        jobs=arguments.jobs,
        job_bytes=int(str(known)) if arguments.job_gigabytes is None else int(arguments.job_gigabytes * 1e9),
        disk_bytes=int(needed * 1e9) if needed is not None else None if venv is None else tree_bytes(venv),
        place=str(root),
    )


MODULE = Module(
    name="preflight",
    arguments=Arguments,
    effect="reads",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Gate: driver, GPUs, compilers, room and network of this server fit the target.",
)
