"""`init`: a first playbook and inventory from what runs now. It only reads, but for the two files that it writes."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossgrade.commands.common import guarded, number, people
from crossgrade.errors import CrossgradeError, ExitCode, WrongOptionsError
from crossgrade.inspect.dists import InstalledDist, direct_url, installed_dists
from crossgrade.knowledge import Row, table
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line

if TYPE_CHECKING:
    from crossgrade.facts.gpus import Gpu
    from crossgrade.facts.serving import Server
    from crossgrade.playbook.first import Found

Options = Mapping[str, Any]
SCHEMA = 1
PLAYBOOK, INVENTORY = "playbook.yml", "inventory.yml"
# Where environments lie when neither a process nor VIRTUAL_ENV names one
USUAL_PLACES = (".venv", "~/ml-env", "~/.venv", "~/venv", "/srv/ml-env", "/opt/ml-env", "/opt/venv")
_GENERATION = re.compile(r"(.+)/store/generations/\d+/venv")
_TOOLS = frozenset({"pip", "setuptools", "wheel", "uv"})


def init_command(options: Options) -> int:
    return guarded(lambda: _init(options))


def _init(options: Options) -> int:
    from crossgrade.playbook.first import inventory_text, playbook_text

    if not re.fullmatch(r"\d+\.\d+", options["cuda"]):
        raise WrongOptionsError(f"--cuda names a release such as 13.0, not {options['cuda']!r}")
    folder = Path(options["folder"] or ".").expanduser().absolute()
    files = [folder / PLAYBOOK, folder / INVENTORY]
    if (there := [file for file in files if os.path.lexists(file)]) and not options["force"]:
        raise CrossgradeError(f"{there[0]} is there already", remedy="--force replaces it; or name another folder.")
    found = look(options)
    folder.mkdir(parents=True, exist_ok=True)
    from crossgrade.store.atomic import write_file

    for file, text in zip(files, (playbook_text(found), inventory_text(found)), strict=True):
        write_file(file, text.encode("utf-8"))  # for its owner only: a command line may tell things
    _tell(options, found, files)
    return ExitCode.DONE


def _tell(options: Options, found: Found, files: Sequence[Path]) -> None:
    from crossgrade.playbook.first import assumptions
    from crossgrade.playbook.positions import printable

    following = f"crossgrade plan --playbook {files[0]} -i {files[1]}"
    assumed = assumptions(found)
    if options["json"]:
        server = found.server
        said = {
            "schema": SCHEMA,
            "written": [str(file) for file in files],
            "pid": server.pid if server else None,
            "engine": found.engine,
            "venv": found.venv,
            "assumed": list(assumed),
            "faults": [{"fault": fault, "subject": subject} for fault, subject in found.faults],
            "next": following,
        }
        sys.stdout.write(json.dumps(said) + "\n")
    terminal = Terminal(people(options))
    lines = [Line("found", "heading"), *(Line(f"  {printable(text)}") for text in _found(found))]
    if found.faults:
        lines.append(Line("faults of the environment (`plan` says more of each)", "heading"))
        lines += [Line(f"  {fault}: {printable(subject)}", "warning") for fault, subject in found.faults]
    lines += [Line("assumed", "heading"), *(Line(f"  {printable(text)}") for text in assumed)]
    lines += [Line(f"written: {file}", "ok") for file in files]
    terminal.write([*lines, Line(f"next: {following}")])


def _found(found: Found) -> list[str]:
    server = found.server
    lines = []
    if server is not None:
        model = f", model {server.model}" if server.model else ""
        lines.append(f"{server.engine}, process {server.pid}, port {server.port}{model}")
        lines.append(
            f"systemd unit {server.unit}{' of the user' if server.user_unit else ''}" if server.unit else "no unit"
        )
    versions = [f"{name} {found.versions[name]}" for name in (found.engine, "torch") if name in found.versions]
    lines.append(f"environment {found.venv}: {', '.join(versions) or 'without the engine'}")
    to = [f"{found.engine} {found.target}", f"torch {found.target_torch}"] if found.target else ["to be filled in"]
    lines.append(f"target CUDA {found.cuda}: {', '.join(to)}")
    return lines


# ---- looking


def look(options: Options) -> Found:
    """Everything that a first playbook is made of. Raises CrossgradeError where it cannot be told what is meant."""
    from crossgrade.facts import server as facts
    from crossgrade.facts.text import is_there
    from crossgrade.playbook.first import Found

    server, venv = _choose(options)
    dists = installed_dists(venv)
    versions = {dist.name: dist.version for dist in dists}
    row = _row(server, versions)
    engine = str(row["engine"])
    target = next(
        (each for each in table("cuda_targets") if (each["engine"], each["cuda"]) == (engine, options["cuda"])), {}
    )
    gpus = facts.Server(venv=venv).gpus.gpus
    known: list[Gpu] = [gpu for gpu in gpus if gpu.compute_capability]
    python = _python(venv)
    missing = () if engine in versions else (f"{engine} is not installed in {venv}",)
    return Found(
        venv=str(_link_of(venv)),
        root=_root(venv),
        engine=engine,
        cuda=options["cuda"],
        versions=versions,
        server=server,
        python=str(python) if python is not None and is_there(python) else "",
        requested=_requested(dists, engine),
        checkouts=tuple(
            f"{dist.name} ({url.directory})" for dist in dists if (url := direct_url(dist)) is not None and url.editable
        ),
        target=str(target.get("version", "")),
        target_torch=str(target.get("torch", "")),
        require=tuple(map(str, _list(target.get("require")))),
        compute_capability=known[0].compute_capability or "" if known else "",
        gpus=tuple(f"{gpu.name}, {gpu.compute_capability}" for gpu in known),
        imports=tuple(map(str, _list(row["imports"]))),
        start=_placeholder(row),
        health=str(row["health"]),
        uid=os.geteuid(),
        unit_needs=_unit_needs(server, str(target.get("version", ""))),
        notes=missing,
        faults=_faults(venv),
    )


def _unit_needs(server: Server | None, target: str) -> tuple[str, ...]:
    """What the command line of the server's unit needs for the version to go to."""
    if server is None or not server.unit or not target:
        return ()
    from crossgrade.facts.units import read_exec_start
    from crossgrade.gates.launch_unit import judge_unit

    started = read_exec_start(server.unit, user=server.user_unit, home=Path.home())
    found = judge_unit(server.unit, started, target, user=server.user_unit)
    return tuple(finding.message for finding in found if finding.level != "note")


def _faults(venv: Path) -> tuple[tuple[str, str], ...]:
    """The name of each fault of an environment, and what it is about."""
    from crossgrade.facts.environment import read_environment
    from crossgrade.gates.environment import judge_environment
    from crossgrade.inspect.query import run_query

    found = judge_environment(read_environment(venv, os.environ, runner=run_query)).of_level("warning")
    return tuple((finding.fault or "not known", finding.subject) for finding in found)


def _choose(options: Options) -> tuple[Server | None, Path]:
    """The server that is meant, None where none runs, and its environment."""
    from crossgrade.facts.serving_reading import environment_of, is_environment, read_servers

    port = number("port", options["port"])
    named = Path(options["venv"]).expanduser().absolute() if options["venv"] else None
    if named is not None and not is_environment(named):
        raise CrossgradeError(
            f"{named} is no environment", remedy="--venv names a folder with bin/python and pyvenv.cfg."
        )
    running = read_servers()
    environments = {server.pid: environment_of(server) for server in running if not server.elsewhere}
    meant = [server for server in running if not server.elsewhere and port in (None, server.port)]
    if named is not None:
        same = os.path.realpath(named)
        meant = [one for one in meant if (own := environments[one.pid]) is None or os.path.realpath(own) == same]
    if port is not None and not meant:
        raise WrongOptionsError(f"no server was found on port {port}", remedy=_listed(running) or "None runs at all.")
    if len(meant) > 1:
        meant = [_ask(meant, environments)]
    if meant:
        venv = named or environments[meant[0].pid]
        if venv is None:
            raise CrossgradeError(
                f"which environment process {meant[0].pid} runs from could not be found",
                remedy="Name it: --venv PATH. Another user's process shows it to root only.",
            )
        return meant[0], venv
    if named is None and running:
        raise CrossgradeError(
            "the server runs in a container, whose files have other paths here",
            remedy=f"Run crossgrade in the container, or name an environment: --venv PATH.\n  {_listed(running)}",
        )
    return None, named or _usual_place()


def _ask(servers: Sequence[Server], environments: Mapping[int, Path | None]) -> Server:
    """The one that is meant, where there is somebody to ask. Raises WrongOptionsError elsewhere."""
    lines = [f"  {_line(server)}, environment {environments[server.pid] or 'not known'}" for server in servers]
    if sys.stdin.isatty() and sys.stdout.isatty():
        print(*lines, sep="\n")  # noqa: T201 - a question to a person
        try:
            said = input("Which one? Its port: ").strip()
        except EOFError:
            said = ""
        chosen = [server for server in servers if said == str(server.port)]
        if len(chosen) == 1:
            return chosen[0]
    text = "\n".join(lines).strip()
    raise WrongOptionsError(
        f"{len(servers)} servers run here", remedy=f"Say which: --port PORT or --venv PATH.\n  {text}"
    )


def _line(server: Server) -> str:
    where = f", container {server.container}" if server.container else ""
    return f"process {server.pid}: {server.engine} on port {server.port}, {server.model or 'model not known'}{where}"


def _listed(servers: Sequence[Server]) -> str:
    return "\n  ".join(map(_line, servers))


def _usual_place() -> Path:
    """The environment of an engine that is activated here, or lies where they usually do. Raises CrossgradeError."""
    from crossgrade.facts.serving_reading import is_environment

    engines = {str(row["engine"]) for row in table("servers")}
    for place in (os.environ.get("VIRTUAL_ENV", ""), *USUAL_PLACES):
        folder = Path(place).expanduser().absolute()
        if place and is_environment(folder) and engines & {dist.name for dist in installed_dists(folder)}:
            return folder
    raise CrossgradeError(
        f"no server of {' or '.join(sorted(engines))} runs here, and no environment with one was found",
        remedy=f"Start the server, or name its environment: --venv PATH. Looked at: VIRTUAL_ENV, "
        f"{', '.join(USUAL_PLACES)}.",
    )


def _row(server: Server | None, versions: Mapping[str, str]) -> Row:
    rows = table("servers")
    if server is not None:
        return next(row for row in rows if row["engine"] == server.engine)
    return next((row for row in rows if row["engine"] in versions), rows[0])


def _placeholder(row: Row) -> tuple[str, ...]:
    from crossgrade.playbook.first import PLACEHOLDER

    option = str(_list(row["model"])[0])
    module = str(row["module"])
    return ("{python}", "-m", module, option, PLACEHOLDER, "--host", "{host}", "--port", "{port}")


def _python(venv: Path) -> Path | None:
    """The interpreter below an environment: its own would be gone with it."""
    from crossgrade.facts.text import text_of
    from crossgrade.facts.venv import parse_configuration
    from crossgrade.inspect.dists import site_packages

    base = parse_configuration(text_of(venv / "pyvenv.cfg")).base
    return None if base is None else Path(base) / site_packages(venv).parent.name


def _requested(dists: Sequence[InstalledDist], engine: str) -> tuple[str, ...]:
    """Dists that somebody asked for by name (PEP 376, REQUESTED) and that no other dist asks for."""
    from crossgrade.inspect.requirements import required_names

    asked = {engine, "torch", *_TOOLS}
    for dist in dists:
        with suppress(OSError, ValueError):  # then more is listed than need be
            asked |= required_names(dist)
    return tuple(
        f"{dist.name}=={dist.version}"
        for dist in dists
        if dist.name not in asked and (dist.folder / "REQUESTED").exists()
    )


def _link_of(venv: Path) -> Path:
    """The active link of the store that an environment lies in; else the environment as it is named."""
    from crossgrade.store.layout import Store

    if inside := _GENERATION.fullmatch(str(venv)):
        return Store(Path(inside[1]) / "store").active_link or venv
    return venv


def _root(venv: Path) -> str:
    """The root of the store that an environment is of already; else a folder beside it, on the same filesystem."""
    link = _link_of(venv)
    if link.is_symlink() and (inside := _GENERATION.fullmatch(os.path.realpath(link))):
        return inside[1]
    return str(link.parent / f"crossgrade-{link.name.lstrip('.')}")


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
