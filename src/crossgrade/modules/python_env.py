"""python_env: a venv from an exact, hashed lock.

Without `path` it builds the candidate: the next generation, beside everything that is there. A generation that
was built from the same inputs is used again, also one that a failed run left behind (`rejected`), as long as
its files still are what its manifest says; it stays marked `rejected` until `activate` has activated it.

With `path` it makes an ordinary venv there, or finds that the one that is there meets the requirements. It
never changes an environment that is there already.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ClassVar

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules import candidate, carrying, git_wheels, plain_env
from crossgrade.modules.base import base_python, find_base
from crossgrade.modules.contract import (
    ApplyContext,
    Change,
    HostView,
    Laying,
    LockRequest,
    Module,
    Outcome,
    Plan,
    PlanWarning,
)
from crossgrade.modules.extension_build import python_identity, python_program
from crossgrade.modules.git_wheels import with_git_wheels
from crossgrade.modules.stated import state_request
from crossgrade.modules.wheels import find_wheel
from crossgrade.playbook.arguments import argument


@dataclass(frozen=True)
class Arguments:
    """The requirements are resolved when the plan is made; what is installed is exactly what the plan showed."""

    required_one_of: ClassVar[Sequence[Sequence[str]]] = (("requirements", "requirements_files", "wheels"),)

    requirements: tuple[str, ...] = argument(
        doc="Requirements as in requirements.txt, one for each item: `sglang==0.5.23`, with extras and markers; a "
        "wheel by its path or address (`name @ https://…/x.whl#sha256=…`); a git repository (`NAME @ git+URL@REV`), "
        "which is pinned to a commit and built once. See [resolving](resolving.md).",
        default=(),
    )
    requirements_files: tuple[str, ...] = argument(
        doc="Requirements files as pip reads them, with `-r`, `-c`, `--index-url`, `--extra-index-url`, "
        "`--find-links`, `--pre` and hashes. A relative path counts from the playbook.",
        default=(),
    )
    path: str | None = argument(
        doc="Make an ordinary venv here. Without it, the next generation is built: the candidate.", default=None
    )
    base: str = argument(
        doc="What the candidate begins as: an empty venv, or a clone of the active generation. A clone keeps the dists "
        "that the requirements do not name.",
        default="fresh",
        choices=("fresh", "clone"),
    )
    wheels: tuple[str, ...] = argument(
        doc="Wheels to install after the lock: what extension_build returned, or paths of wheel files. A dist of "
        "the same name in the lock is left out.",
        default=(),
    )
    constraints: tuple[str, ...] = argument(doc="Versions that must hold if a dist is needed at all.", default=())
    overrides: tuple[str, ...] = argument(doc="Versions to take whatever the dists themselves ask for.", default=())
    local_patches: str = argument(
        doc="What becomes of files that were changed by hand in the active environment, and of checkouts that it uses "
        "in place: `refuse` fails in the plan and names them; `carry` merges files into the new versions, and fails in "
        "the plan with the hunks where that does not go; `drop` builds without them.",
        default="refuse",
        choices=("refuse", "carry", "drop"),
    )
    ignore_patches: tuple[str, ...] = argument(
        doc="Globs of dists, or of files below site-packages, whose local changes may be lost.", default=()
    )
    toolkit: str | None = argument(
        doc="The digest that cuda_toolkit returned: the generation's CUDA_HOME, for kernels compiled at run time.",
        default=None,
    )
    environment: Mapping[str, str] = argument(
        doc="Variables for whatever runs from the generation.", default_factory=dict
    )
    python: str | None = argument(doc="The interpreter. By default the one behind crossgrade's own venv.", default=None)
    index_url: str = argument(doc="The package index, instead of PyPI.", default="")
    extra_index_urls: tuple[str, ...] = argument(doc="More package indexes; they come first.", default=())
    find_links: tuple[str, ...] = argument(doc="Folders or pages with more wheels.", default=())
    prerelease: str = argument(
        doc="Which pre-releases count.",
        default="if-necessary-or-explicit",
        choices=("disallow", "allow", "if-necessary", "explicit", "if-necessary-or-explicit"),
    )
    exclude_newer: str = argument(doc="Leave out what was published after this time (RFC 3339).", default="")
    on_warning: str = argument(
        doc="What the warnings of the plan do (CUDA releases mixed, versions that go back, prereleases …): `warn`, or "
        "`fail` in the plan.",
        default="warn",
        choices=("warn", "fail"),
    )
    ignore_warnings: tuple[str, ...] = argument(
        doc="Warnings that are known and accepted: a name, or a name and a dist (`downgraded:numpy`); globs are "
        "allowed.",
        default=(),
    )


State = candidate.State | plain_env.State


def inspect(arguments: Arguments, host: HostView) -> State:
    if arguments.path is None:
        return candidate.inspect(wanted_of(arguments, host), host)
    if arguments.base == "clone":
        raise TaskError(
            "`base: clone` makes a generation, and `path` asks for an ordinary venv",
            remedy="Leave one of them out.",
        )
    wheels = tuple(find_wheel(given, host) for given in arguments.wheels)
    identity = python_identity(arguments.python, host)
    return plain_env.inspect(arguments.path, _request(arguments, arguments.python, host), wheels, identity, host)


def wanted_of(arguments: Arguments, host: HostView) -> candidate.Wanted:
    """The candidate that a task without `path` asks for. Raises TaskError."""
    # a clone keeps its interpreter, whatever crossgrade itself runs in
    given = arguments.python or (base_python(host) if arguments.base == "clone" else None)
    request = _request(arguments, given, host)
    version = python_version(given, request.python)
    return candidate.Wanted(
        request,
        tuple(find_wheel(wheel, host) for wheel in arguments.wheels),
        arguments.toolkit or "",
        {name: str(value) for name, value in arguments.environment.items()},
        version,
        python_identity(given, host),
        find_base(host, version) if arguments.base == "clone" else None,
        arguments.local_patches,
        arguments.ignore_patches,
    )


def _request(arguments: Arguments, given: str | None, host: HostView) -> LockRequest:
    python = python_program(given, host)
    return state_request(
        host,
        python,
        arguments.requirements,
        arguments.requirements_files,
        arguments.constraints,
        arguments.overrides,
        LockRequest(
            (),
            python,
            index_url=arguments.index_url,
            extra_index_urls=arguments.extra_index_urls,
            find_links=arguments.find_links,
            prerelease=arguments.prerelease,
            exclude_newer=arguments.exclude_newer,
        ),
    )


def python_version(given: str | None, program: str) -> str:
    """The full version, `3.11.7`, of the interpreter that is asked for."""
    if given is None:
        return platform.python_version()
    from crossgrade.inspect.query import run_query

    question = "import platform; print(platform.python_version())"
    return run_query([program, "-I", "-c", question]).stdout.strip()


def plan(arguments: Arguments, state: State) -> Plan:
    planned = plain_env.plan(state) if isinstance(state, plain_env.State) else candidate.plan(state)
    if not isinstance(planned, Change):
        return planned
    kept = tuple(one for one in planned.warnings if not _ignored(one, arguments.ignore_warnings))
    if kept and arguments.on_warning == "fail":
        told = "\n".join(f"    {one.name}: {one.message}" for one in kept)
        raise TaskError(
            f"the resolution has warnings, and `on_warning: fail` is set:\n{told}",
            remedy="Follow their remedies, or accept one with `ignore_warnings` (such as "
            f'"{kept[0].name}:{kept[0].subject}").',
        )
    return replace(planned, warnings=kept)


def _ignored(one: PlanWarning, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(text, glob) for glob in globs for text in (one.name, f"{one.name}:{one.subject}"))


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    state: State = change.payload["state"]
    recipe = with_git_wheels(change.payload["recipe"], context)
    if isinstance(state, plain_env.State):
        return plain_env.apply(state, recipe, change, context)
    return candidate.apply(state, recipe, change, context)


def lay_out(change: Change, venv: Path, laying: Laying) -> tuple[str, ...]:
    from crossgrade.modules.virtual_env import lay_out_recipe

    state: State = change.payload["state"]
    base = state.wanted.base if isinstance(state, candidate.State) else None
    lacking = lay_out_recipe(change.payload["recipe"], base, venv, state.bytes, laying)
    if isinstance(state, candidate.State) and state.patches is not None:
        return (*lacking, *carrying.lay_out(state.patches, venv, laying))
    return lacking


def undo(record: Mapping[str, JSON], context: ApplyContext) -> str:
    if "git" in record:
        return git_wheels.undo(record)
    return plain_env.undo(record, context) if "path" in record else candidate.undo(record, context)


def complete(record: Mapping[str, JSON], context: ApplyContext) -> str | None:
    return None if "path" in record or "git" in record else candidate.complete(record, context)


MODULE = Module(
    name="python_env",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    complete=complete,
    lay_out=lay_out,
    summary="A venv from an exact, hashed lock: the candidate generation, or an ordinary one.",
)
