"""`experiments`: what the upgrade was for. Says what can be tried, tries it by a playbook, writes what came of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossgrade.commands.common import existing_store, guarded, named_venv, number, people, request_from
from crossgrade.engine.request import Request
from crossgrade.errors import CrossgradeError, ExitCode, WrongOptionsError
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line

if TYPE_CHECKING:
    from crossgrade.gates.experiment_probes import Target
    from crossgrade.gates.experiments import StaticAnswer

Options = Mapping[str, Any]
PLAYBOOK = "playbooks/experiments.yml"
SCHEMA = 1
_STYLES = {"refused": "failed", "can be tried": "ok", "not known": "warning"}


@dataclass(frozen=True)
class Asked:
    """An environment and what its sources say of every experiment."""

    venv: Path
    versions: Mapping[str, str]
    target: Target
    answers: tuple[StaticAnswer, ...]


def experiments_command(options: Options) -> int:
    """Exit code 0 also where everything is refused: that is an answer."""
    options = {**options, "playbook": options["playbook"] or PLAYBOOK}
    if options["dry_run"] or options["tables"]:
        return guarded(lambda: _look(options, request_from(options, "experiments")))
    return _run(options)


def _look(options: Options, request: Request) -> int:
    """What needs no server: the sources, the records, the documents."""
    terminal = Terminal(people(options))
    asked = None
    if options["dry_run"]:
        asked = ask(options, request)
        if options["json"]:
            sys.stdout.write(json.dumps(_json(asked), indent=2) + "\n")
        else:
            terminal.write(_lines(asked, every=options["verbose"] > 0))
        if not options["folder"]:
            return ExitCode.DONE
    written = write_documents(options, request, asked)
    terminal.write(Line(f"written: {path}", "ok") for path in written)
    return ExitCode.DONE


def _run(options: Options) -> int:
    """Carry the playbook out, as `upgrade` does, and write the documents also when it was ended early."""
    from crossgrade.commands.upgrading import upgrade_command

    defaults: dict[str, Any] = {"plan": "", "resume": False, "check": False, "yes": False, "confirm_within": ""}
    play: dict[str, Any] = {"diff": False, "list_tasks": False, "syntax_check": False, "detailed_exitcode": False}
    code = upgrade_command({**defaults, **play, **options})
    if code != ExitCode.WRONG_OPTIONS:
        wrote = guarded(lambda: _look(options, request_from(options, "experiments")))
        code = code or wrote
    return code


# ---- what the sources say


def ask(options: Options, request: Request) -> Asked:
    """Read the sources of the environment that is named. Raises CrossgradeError where there is none."""
    from crossgrade.gates.experiments import Sources, ask_sources, experiments, parser_question
    from crossgrade.inspect.dists import installed_dists, site_packages

    venv = _environment(options, request)
    versions = {dist.name: dist.version for dist in installed_dists(venv)}
    site = site_packages(venv)
    target = _target(options, site)
    known = list(experiments().values())
    version = versions.get("sglang", "")
    question = parser_question(site, known, version) if version else None
    return Asked(venv, versions, target, ask_sources(known, Sources(site), target, versions, question))


def _environment(options: Options, request: Request) -> Path:
    generation = number("generation", options["generation"])
    if generation is not None:
        if options["venv"]:
            raise WrongOptionsError("--generation and --venv name two environments", remedy="Give one of them.")
        store = existing_store(request)
        store.generation(generation)  # raises for one that is not there
        return store.venv(generation)
    venv = named_venv(options, request)
    if venv is None:
        raise CrossgradeError("no environment is named", remedy="--venv PATH, or --generation N of a store.")
    return venv


def _target(options: Options, site: Path) -> Target:
    import os

    from crossgrade.modules.experiment import read_target

    found = read_target(options["for_"], site, number("gpus", options["gpus"]), os.environ)
    if found is None:
        raise WrongOptionsError("there is no GPU here to ask", remedy="Say for which: --for 12.0")
    return replace(found, nvlink=False) if options["pcie"] else found


def _json(asked: Asked) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "venv": str(asked.venv),
        "sglang": asked.versions.get("sglang"),
        "compute_capability": str(asked.target),
        "gpus": asked.target.gpus,
        "cuda": asked.target.cuda or None,
        "experiments": [answer.to_json() for answer in asked.answers],
    }


def _lines(asked: Asked, *, every: bool) -> Iterator[Line]:
    version = asked.versions.get("sglang", "")
    engine = f"sglang {version}" if version else "no sglang"
    cuda = f", torch for CUDA {asked.target.cuda}" if asked.target.cuda else ""
    gpus = "" if asked.target.gpus is None else f" on {asked.target.gpus} GPUs"
    yield Line(f"{asked.venv}: {engine}{cuda}, for {asked.target}{gpus}", "heading")
    for answer in asked.answers:
        yield Line(f"{answer.experiment.title}: {answer.answer}", _STYLES[answer.answer])
        yield Line(f"  {answer.difference}", "faint")
        if answer.experiment.before:
            yield Line(f"  before: {answer.experiment.before}", "faint")
        decided = answer.reasons or tuple(each for each in answer.readings if each.answer == "allows")
        shown = answer.readings if every else (*decided, *answer.conditions)
        for reading in shown:
            yield Line(f"  {reading.text}")
            yield from (Line(f"    {quote}", "faint") for quote in reading.quotes)
    counts = {name: sum(answer.answer == name for answer in asked.answers) for name in _STYLES}
    yield Line(", ".join(f"{count} {name}" for name, count in counts.items() if count), "heading")


# ---- documents


def write_documents(options: Options, request: Request, asked: Asked | None) -> Sequence[Path]:
    """Write both tables anew and update the plan document. Raises CrossgradeError for one that is damaged."""
    from crossgrade.gates.experiments import experiments
    from crossgrade.report.experiment_plan import update_plan
    from crossgrade.report.experiments import markdown, page, rows_of
    from crossgrade.store.atomic import write_file
    from crossgrade.store.experiments import read_records

    found = read_records(request.store.root)
    terminal = Terminal(people(options))
    terminal.write(Line(f"not read: {each}", "warning") for each in found.unreadable)
    static = {answer.experiment.name: answer for answer in asked.answers} if asked else {}
    rows = rows_of(experiments(), found.records, static)
    folder = Path(options["folder"]).expanduser().absolute() if options["folder"] else request.root / "experiments"
    folder.mkdir(parents=True, exist_ok=True)
    plan = folder / "plan.md"
    try:
        updated = update_plan(plan.read_text(encoding="utf-8") if plan.exists() else "", rows)
    except ValueError as error:
        raise CrossgradeError(
            f"{plan} is left as it is: {error}", remedy="Mend the lines that begin with `<!--`, or move the file away."
        ) from error
    heading = f"{asked.venv}, for {asked.target}" if asked else str(request.root)
    texts = {"results.md": markdown(rows, heading), "results.html": page(rows, heading), "plan.md": updated}
    for name, text in texts.items():
        write_file(folder / name, text.encode(), 0o644)
    return [folder / name for name in texts]
