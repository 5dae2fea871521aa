"""The environment that the module pip works on: which one, whether it may be changed, and uv's words for it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from crossgrade.errors import TaskError
from crossgrade.inspect.dists import normalize_name
from crossgrade.modules.contract import HostView
from crossgrade.modules.files import absolute, follow, prediction_for
from crossgrade.modules.uv import explain, index_environment, uv_program
from crossgrade.process import Completed

READ_SECONDS = 600.0
_CHANGE = re.compile(r"^ ([+~-]) (\S+?)==(\S+)(?: \(from .*\))?$|^ ([+~-]) (\S+) @ (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Target:
    """An environment. `venv` is None for an interpreter that is no venv's; `python` is what uv is told.

    `missing` is true for a venv that is not there, made first by the interpreter `base`; `foreseen` for one that an
    earlier task of the plan makes. `dists` is what such tasks install.
    """

    python: str
    venv: Path | None
    missing: bool = False
    base: str = ""
    foreseen: bool = False
    dists: Mapping[str, str] = field(default_factory=dict)


def find_target(virtualenv: str | None, executable: str | None, python: str | None, host: HostView) -> Target:
    """Raises TaskError where there is no such interpreter, or the environment is not to be changed."""
    if virtualenv is not None:
        venv = absolute(virtualenv, host)
        _require_not_ours(venv, host)
        place = venv / "bin" / "python"
        missing = not (venv / "pyvenv.cfg").is_file()
        foreseen = missing and follow(venv / "pyvenv.cfg", host).exists
        base = _on_path(python or "python3", host) if missing else ""
        return Target(str(place), venv, missing, base, foreseen, _foreseen_dists(str(place), host))
    interpreter = _of_pip(executable, host) if executable else _on_path("python3", host)
    prefix = Path(interpreter).parent.parent
    venv_of = prefix if (prefix / "pyvenv.cfg").is_file() else None
    _require_not_ours(prefix, host)
    return Target(interpreter, venv_of, dists=_foreseen_dists(interpreter, host))


def _foreseen_dists(python: str, host: HostView) -> dict[str, str]:
    value = host.predicted("path", python)
    dists = value.get("dists") if isinstance(value, dict) else None
    return {name: str(version) for name, version in dists.items()} if isinstance(dists, dict) else {}


def _of_pip(executable: str, host: HostView) -> str:
    """The interpreter that a pip runs in: by its first line, or the python beside it."""
    path = Path(absolute(executable, host)) if "/" in executable else Path(_on_path(executable, host))
    if not path.exists():
        raise TaskError(f"there is no {path}")
    with path.open("rb") as stream:
        first = stream.readline(4096).decode("utf-8", "replace")
    if first.startswith("#!") and "python" in first and Path(first[2:].split()[0]).exists():
        return first[2:].split()[0]
    name = "python" + path.name.removeprefix("pip") if path.name.startswith("pip") else "python3"
    for beside in (path.parent / name, path.parent / "python3", path.parent / "python"):
        if beside.exists():
            return str(beside)
    raise TaskError(f"it cannot be seen which Python {path} belongs to", remedy="Give `virtualenv` instead.")


def _on_path(name: str, host: HostView) -> str:
    if "/" in name:
        return str(absolute(name, host))
    found = shutil.which(name, path=host.environment.get("PATH", os.defpath))
    if found is None:
        raise TaskError(f"there is no {name} on PATH")
    return found


def _require_not_ours(venv: Path, host: HostView) -> None:
    """Raises TaskError for a generation, for what will become one, and for crossgrade's own environment."""
    resolved = Path(os.path.realpath(venv))
    store = Path(os.path.realpath(host.store.root))
    predicted = prediction_for(venv, host) or {}
    owned = store in (resolved, *resolved.parents) or venv == host.store.active_link or "generation" in predicted
    if owned:
        raise TaskError(
            f"{venv} belongs to crossgrade's store: what is in it is on record and is never changed",
            remedy="Let `python_env` build a candidate with the new requirements (`base: clone` keeps the rest).",
        )
    if resolved == Path(os.path.realpath(sys.prefix)):
        raise TaskError(f"{venv} is the environment that crossgrade itself runs in", remedy="Change it outside a run.")


# ---- uv's words


def uv_pip(target: Target, *words: str, directory: Path | None = None) -> list[str]:
    """The command line of `uv pip`. `directory` is where relative paths in it count from."""
    where = ["--directory", str(directory)] if directory is not None else []
    python = target.base if target.missing else target.python
    return [uv_program(), *where, "pip", words[0], "--python", python, *words[1:]]


def uv_surroundings(environment: Mapping[str, str]) -> dict[str, str]:
    """pip's index settings under uv's names; nothing of a project in the working directory counts."""
    return (
        {**index_environment(environment), "UV_NO_CONFIG": "1"}
        if _plain(environment)
        else index_environment(environment)
    )


def _plain(environment: Mapping[str, str]) -> bool:
    return not environment.get("UV_CONFIG_FILE")


@contextmanager
def planned_place(target: Target) -> Iterator[list[str]]:
    """Options that let a dry run look at the environment, or at an empty folder for one that is made first."""
    if not target.missing:
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="crossgrade-pip-") as folder:
        yield ["--target", folder]


def installed(target: Target, host: HostView) -> dict[str, str]:
    """Normalized name → version. Raises TaskError."""
    if target.missing:
        return {}
    answer = host.run(uv_pip(target, "list", "--format", "json"), timeout=READ_SECONDS)
    if not answer.succeeded:
        raise TaskError(f"uv cannot list what is in {target.python}: {explain(answer.stderr) or answer.outcome()}")
    return {normalize_name(str(each["name"])): str(each["version"]) for each in json.loads(answer.stdout)}


def frozen(target: Target, host: HostView) -> dict[str, str]:
    """Normalized name → what would install the same again, as `uv pip freeze` has it. Raises TaskError."""
    if target.missing:
        return {}
    answer = host.run(uv_pip(target, "freeze", "--exclude-editable"), timeout=READ_SECONDS)
    listed = host.run(uv_pip(target, "list", "--editable", "--format", "json"), timeout=READ_SECONDS)
    for each in (answer, listed):
        if not each.succeeded:
            raise TaskError(f"uv cannot list what is in {target.python}: {explain(each.stderr) or each.outcome()}")
    lines = [line for line in answer.stdout.splitlines() if line.strip()]
    found = {normalize_name(re.split(r"==| @ ", line, maxsplit=1)[0]): line for line in lines}
    for each_one in json.loads(listed.stdout):
        found[normalize_name(str(each_one["name"]))] = f"-e {each_one['editable_project_location']}"
    return found


def parse_changes(text: str) -> tuple[tuple[str, str, str], ...]:
    """(name, before, after) of each dist that uv says it changes; "" for not there. Pure.

    From uv's lines `` + name==1.0``, `` - name==1.0`` and `` ~ name==1.0`` (the same once more).
    """
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    for sign, name, version, direct_sign, direct_name, url in _CHANGE.findall(text):
        sign, name, version = (sign, name, version) if sign else (direct_sign, direct_name, url)
        if sign in "-~":
            before[name] = version
        if sign in "+~":
            after[name] = version
    return tuple((name, before.get(name, ""), after.get(name, "")) for name in sorted({*before, *after}))


def translated(words: Sequence[str]) -> list[str]:
    """Options of pip in uv's words. Raises TaskError for those that would install somewhere else."""
    from crossgrade.knowledge import table

    rows = {str(row["pip"]): row for row in table("pip_options")}
    found = []
    for word in words:
        name, sign, value = word.partition("=")
        row = rows.get(name)
        if row is None:
            found.append(word)
        elif "refused" in row:
            raise TaskError(f"`extra_args`: {name} is refused: {row['refused']}", remedy="Give `virtualenv` instead.")
        elif row["uv"]:
            found.append(f"{row['uv']}{sign}{value}")
    return found


def said(answer: Completed) -> str:
    return explain(answer.stderr) or answer.outcome()
