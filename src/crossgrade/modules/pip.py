"""pip: Python packages in an environment that is not the store's, by uv.

uv is asked what it would do (`--dry-run`) before it does it. Taking back restores the versions that were there: what
was new is removed, what was changed or removed is installed again from where the index or uv's cache has it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import (
    ApplyContext,
    Change,
    Difference,
    HostView,
    Module,
    Outcome,
    Plan,
    Prediction,
    Unchanged,
)
from crossgrade.modules.files import absolute
from crossgrade.modules.pip_environment import (
    READ_SECONDS,
    Target,
    find_target,
    frozen,
    installed,
    parse_changes,
    planned_place,
    said,
    translated,
    uv_pip,
    uv_surroundings,
)
from crossgrade.modules.uv import make_venv, persistently
from crossgrade.playbook.arguments import argument

INSTALL_SECONDS = 7200.0
LOG = "pip.log"
_CONTINUED = re.compile(r"\s*(===?|!=|~=|<=?|>=?)")  # `django>=1.11,<2` was one requirement before the comma split it


@dataclass(frozen=True)
class Arguments:
    """Installs or removes Python packages by uv. An environment of the store is refused: `python_env` makes those."""

    name: tuple[str, ...] = argument(doc="Requirements (`numpy>=2,<3`), paths of wheels, or URLs.", default=())
    version: str | None = argument(doc="The version of the one `name`.", default=None)
    requirements: str | None = argument(doc="A requirements file.", default=None)
    virtualenv: str | None = argument(doc="The venv; it is made when it is missing.", default=None)
    virtualenv_python: str | None = argument(doc="The interpreter for a new venv.", default=None)
    virtualenv_site_packages: bool = argument(doc="A new venv also sees the interpreter's own packages.", default=False)
    virtualenv_command: str = argument(doc="Accepted for Ansible's sake: uv makes the venv.", default="virtualenv")
    executable: str | None = argument(doc="A pip: the environment is the one that it belongs to.", default=None)
    state: Literal["present", "absent", "latest", "forcereinstall"] = argument(
        doc="`latest` takes the newest of those named, `forcereinstall` installs in any case.", default="present"
    )
    extra_args: str | None = argument(
        doc="More options, as pip has them; those of another place are refused.", default=None
    )
    editable: bool = argument(doc="Install each `name` (a directory) so that edits in it count.", default=False)
    chdir: str | None = argument(doc="Where relative paths count from; else the playbook's directory.", default=None)
    umask: str | None = argument(doc='The umask for what is written, in octal: "0022".', default=None)
    break_system_packages: bool = argument(doc="Change an interpreter that the system's packages own.", default=False)
    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (("name", "requirements"), ("executable", "virtualenv"))
    required_one_of: ClassVar[tuple[tuple[str, ...], ...]] = (("name", "requirements"),)


@dataclass(frozen=True)
class State:
    """`words` are what uv is told after the verb, `changes` what it says that it would change: name, before, after."""

    target: Target
    directory: Path
    verb: str
    words: tuple[str, ...]
    changes: tuple[tuple[str, str, str], ...]
    before: Mapping[str, str]


# ---- looking


def inspect(arguments: Arguments, host: HostView) -> State:
    if arguments.umask is not None and not re.fullmatch("[0-7]{3,4}", arguments.umask):
        raise TaskError(f"`umask` must be octal digits, not {arguments.umask!r}")
    target = find_target(arguments.virtualenv, arguments.executable, arguments.virtualenv_python, host)
    directory = absolute(arguments.chdir or "", host) if arguments.chdir else host.playbook_directory.absolute()
    verb = "uninstall" if arguments.state == "absent" else "install"
    words = _words(arguments, host, verb)
    before = installed(target, host)
    if target.missing and verb == "uninstall":
        return State(target, directory, verb, tuple(words), (), before)
    with planned_place(target) as place:
        argv = uv_pip(target, verb, "--dry-run", *place, *words, directory=directory)
        answer = persistently(
            lambda: host.run(argv, environment=uv_surroundings(host.environment), timeout=READ_SECONDS)
        )
    if not answer.succeeded:
        raise TaskError(f"uv cannot {verb} {_subject(arguments)}: {said(answer)}", remedy=_remedy(answer.stderr))
    changes = parse_changes(answer.stderr + answer.stdout)
    left = tuple((name, target.dists.get(name, old), new) for name, old, new in changes if _is_left(name, new, target))
    return State(target, directory, verb, tuple(words), left, before)


def _is_left(name: str, after: str, target: Target) -> bool:
    """Whether an earlier task of the plan does not do it already."""
    return name not in target.dists or target.dists[name] != after


def _words(arguments: Arguments, host: HostView, verb: str) -> list[str]:
    names = joined(arguments.name)
    if arguments.version is not None:
        if len(names) != 1:
            raise TaskError("`version` goes with one `name`", remedy="Write the versions in `name`: `numpy==2.3.5`.")
        if re.search(r"[<>=!~@]", names[0]):
            raise TaskError(f"{names[0]!r} says a version itself, and `version` says another")
        names = [f"{names[0]}=={arguments.version}"]
    for name in names:
        if name.startswith("-") or not name.strip():
            raise TaskError(f"{name!r} is no requirement", remedy="Options belong into `extra_args`.")
    words = translated(shlex.split(arguments.extra_args or "")) if verb == "install" else []
    if verb == "install":
        bare = [re.split(r"[\[<>=!~;@ ]", name, maxsplit=1)[0] for name in names]
        if arguments.state == "latest":
            words += ["--upgrade"] if arguments.requirements else [w for n in bare for w in ("--upgrade-package", n)]
        if arguments.state == "forcereinstall":
            words += ["--upgrade", "--reinstall"]
    words += ["--break-system-packages"] if arguments.break_system_packages else []
    if arguments.requirements is not None:
        return [
            *words,
            "--requirements",
            str(absolute(arguments.requirements, host)) if not arguments.chdir else arguments.requirements,
        ]
    if arguments.editable and verb == "install":
        return [*words, *(word for name in names for word in ("--editable", name))]
    return [*words, "--", *names]


def joined(names: Sequence[str]) -> list[str]:
    """The names, with those put together again that a comma within a requirement had parted. Pure."""
    found: list[str] = []
    for name in names:
        if found and _CONTINUED.match(name):
            found[-1] += "," + name.strip()
        else:
            found.append(name.strip())
    return found


def _subject(arguments: Arguments) -> str:
    return ", ".join(joined(arguments.name)) or str(arguments.requirements)


def _remedy(stderr: str) -> str:
    if "externally managed" in stderr:
        return "Give a `virtualenv`; or say `break_system_packages: true` when that is what you want."
    return ""


# ---- planning


def plan(arguments: Arguments, state: State) -> Plan:
    values = _values(arguments, state)
    if not state.changes and (not state.target.missing or state.target.foreseen):
        return Unchanged(f"{_subject(arguments)}: nothing to do", values)
    if not state.changes and state.verb == "uninstall":
        return Unchanged("the environment is not there", values)
    where = state.target.venv or Path(state.target.python)
    made = f"make the venv {where}; " if state.target.missing and not state.target.foreseen else ""
    predicts = []
    if state.target.missing and state.target.venv is not None:
        for name in ("", "pyvenv.cfg"):
            predicts.append(Prediction("path", str(state.target.venv / name), {"exists": True}))  # noqa: PERF401
    dists: dict[str, JSON] = {**state.target.dists, **{name: after for name, _, after in state.changes}}
    predicts.append(Prediction("path", state.target.python, {"exists": True, "dists": dists}))
    return Change(
        f"{made}{state.verb} {_subject(arguments)} in {where}",
        tuple(Difference(name, before, after) for name, before, after in state.changes),
        values,
        values_known=False,
        predicts=tuple(predicts),
        payload={"state": state},
    )


def _values(arguments: Arguments, state: State) -> dict[str, Any]:
    return {
        "cmd": uv_pip(state.target, state.verb, *state.words, directory=state.directory),
        "name": list(joined(arguments.name)) or None,
        "version": arguments.version,
        "state": arguments.state,
        "requirements": arguments.requirements,
        "virtualenv": arguments.virtualenv,
        "stdout": "",
        "stderr": "",
        "stdout_lines": [],
        "stderr_lines": [],
    }


# ---- doing


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:
    state: State = change.payload["state"]
    target = state.target
    around = uv_surroundings(context.host.environment)
    record: dict[str, JSON] = {
        "python": target.python,
        "made": str(target.venv) if target.missing else "",
        "frozen": dict(frozen(target, context.host)),
        "versions": dict(state.before),
        "break": arguments.break_system_packages,
    }
    by_hand = [f"rm -r {shlex.quote(str(target.venv))}"] if target.missing else []
    with context.step(change.summary, record, by_hand=by_hand), _umask(arguments.umask):
        if target.missing and target.venv is not None:
            _make_venv(arguments, target, context)
        there = Target(target.python, target.venv)
        argv = uv_pip(there, state.verb, *state.words, directory=state.directory)
        answer = persistently(
            lambda: context.run(argv, environment=around, timeout=INSTALL_SECONDS, log_name=LOG), context.progress
        )
        if not answer.succeeded:
            raise TaskError(f"uv {state.verb}: {said(answer)}", remedy=f"See {context.log_directory / LOG}.")
    values = {**_values(arguments, State(there, state.directory, state.verb, state.words, (), {}))}
    values |= {"stdout": answer.stdout, "stderr": answer.stderr}
    values |= {"stdout_lines": answer.stdout.splitlines(), "stderr_lines": answer.stderr.splitlines()}
    return Outcome(values)


def _make_venv(arguments: Arguments, target: Target, context: ApplyContext) -> None:
    venv = target.venv
    if venv is None:
        return
    argv = make_venv(target.base, venv, venv.name, existing=venv.is_dir())
    if arguments.virtualenv_site_packages:
        argv.insert(-1, "--system-site-packages")
    answer = context.run(argv, log_name=LOG)
    if not answer.succeeded:
        raise TaskError(f"uv cannot make the venv {venv}: {said(answer)}")


@contextmanager
def _umask(octal: str | None) -> Iterator[None]:
    """The process's umask while programs are started; they inherit it."""
    if octal is None:
        yield
        return
    before = os.umask(int(octal, 8))
    try:
        yield
    finally:
        os.umask(before)


# ---- undo


def undo(record: Mapping[str, JSON], context: ApplyContext) -> str:
    """Restore what was there: the same versions, or no venv. Raises TaskError where an old version cannot be had."""
    made = str(record["made"])
    if made:
        there = Path(made)
        if not (there / "pyvenv.cfg").exists() and not there.exists():
            return ""
        shutil.rmtree(there)
        return f"removed {made}"
    target = Target(str(record["python"]), None)
    before = record["versions"]
    lines = record["frozen"]
    if not isinstance(before, dict) or not isinstance(lines, dict):
        return ""
    now = installed(target, context.host)
    system = ["--break-system-packages"] if record["break"] else []
    new = sorted(name for name in now if name not in before)
    lost = [_again(name, str(old), str(lines.get(name, ""))) for name, old in before.items() if now.get(name) != old]
    around = uv_surroundings(context.host.environment)
    done = []
    if new:
        answer = context.run(uv_pip(target, "uninstall", *system, *new), environment=around, log_name=LOG)
        if not answer.succeeded:
            raise TaskError(f"uv cannot remove {', '.join(new)}: {said(answer)}")
        done.append(f"removed {', '.join(new)}")
    if lost:
        words = ["install", "--no-deps", *system]
        words += [word for line in lost for word in (["--editable", line[3:]] if line.startswith("-e ") else [line])]
        answer = persistently(lambda: context.run(uv_pip(target, *words), environment=around, log_name=LOG))
        if not answer.succeeded:
            raise TaskError(
                f"uv cannot install {', '.join(lost)} again: {said(answer)}",
                remedy=f"Later: uv pip install --python {target.python} --no-deps {' '.join(lost)}",
            )
        done.append(f"installed {', '.join(lost)} again")
    return "; ".join(done)


def _again(name: str, version: str, line: str) -> str:
    """What installs a dist as it was. One that came from a file which is gone is looked for in the index."""
    _, direct, url = line.partition(" @ file://")
    return f"{name}=={version}" if not line or (direct and not Path(url).exists()) else line


MODULE = Module(
    name="pip",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    proves_itself=False,
    summary="Python packages in an environment outside the store, by uv.",
)
