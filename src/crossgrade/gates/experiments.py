"""Experiments before anything is started: what an environment's own sources say of each launch variant.

The rows are `knowledge/experiments.yml`. A file that is not there, or not in a shape that is known, makes an answer
`unknown`: it is never taken for a permission, nor for a refusal.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from crossgrade.errors import TaskError
from crossgrade.gates.experiment_probes import Quote, Reading, Target, look
from crossgrade.jsontype import JSON
from crossgrade.knowledge import Row, table

Answer = Literal["refused", "can be tried", "not known"]


@dataclass(frozen=True)
class Experiment:
    """One row of the table: a launch variant. `flags` are as the oldest version spells them."""

    name: str
    title: str
    engine: str
    gpus: int
    before: str
    unblocked: str
    source: str
    flags: tuple[str, ...] = ()
    more_flags: tuple[tuple[str, tuple[str, ...]], ...] = ()
    without: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    concurrencies: tuple[int, ...] = (1,)
    probes: tuple[Row, ...] = ()
    failures: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    shown: tuple[tuple[str, str], ...] = ()

    def shown_by(self, version: str) -> str:
        """The pattern of the log line by which this version says that the feature is used; "" where none is known."""
        from crossgrade.facts.launch_line import reached

        return next((pattern for since, pattern in self.shown if not since or reached(since, version)), "")


@dataclass(frozen=True)
class StaticAnswer:
    """What the sources say of one experiment. `conditions` is what a person must know who tries it."""

    experiment: Experiment
    answer: Answer
    readings: tuple[Reading, ...]
    flags: tuple[str, ...]

    @property
    def difference(self) -> str:
        """How the variant differs from the plain launch line, in a few words."""
        words = [" ".join(self.flags), *(f"{name}={value}" for name, value in self.experiment.environment.items())]
        words += [f"without {option}" for option in self.experiment.without]
        return ", ".join(word for word in words if word)

    @property
    def reasons(self) -> tuple[Reading, ...]:
        """What decided: the refusals, or what could not be read."""
        wanted = {"refused": "refuses", "not known": "unknown"}.get(self.answer)
        return tuple(reading for reading in self.readings if reading.answer == wanted)

    @property
    def conditions(self) -> tuple[Reading, ...]:
        return tuple(reading for reading in self.readings if reading.answer == "depends")

    def to_json(self) -> dict[str, JSON]:
        return {
            "experiment": self.experiment.name,
            "title": self.experiment.title,
            "answer": self.answer,
            "flags": list(self.flags),
            "environment": dict(self.experiment.environment),
            "readings": [reading.to_json() for reading in self.readings],
        }


def experiments() -> dict[str, Experiment]:
    """All rows of the table by name, in its order."""
    return {str(row["id"]): _experiment(row) for row in table("experiments")}


def find_experiment(name: str, own: Mapping[str, JSON] | None = None) -> Experiment:
    """A row of the table; with `own`, one that a playbook brings in the same words.

    Raises TaskError for a name that is not in the table, or that is there already, and for words that no row has.
    """
    known = experiments()
    if own:
        if name in known:
            raise TaskError(f"{name!r} is an experiment of crossgrade's own", remedy="Give yours another name.")
        if wrong := sorted(set(own) - _WORDS):
            raise TaskError(f"an experiment has no {wrong[0]!r}", remedy=f"It may have: {', '.join(sorted(_WORDS))}.")
        return _experiment({"id": name, "source": "the playbook", **own})
    if name not in known:
        raise TaskError(
            f"there is no experiment {name!r}",
            remedy=f"There are: {', '.join(known)}; `variant` makes one of your own.",
        )
    return known[name]


_WORDS = {
    *("title", "engine", "gpus", "flags", "without", "environment", "values", "before", "unblocked"),
    *("probes", "failures", "refused", "shown", "concurrencies"),
}


def _experiment(row: Row) -> Experiment:
    return Experiment(
        name=str(row["id"]),
        title=str(row.get("title") or row["id"]),
        engine=str(row.get("engine", "")),
        gpus=int(str(row.get("gpus", 1))),
        before=str(row.get("before", "")),
        unblocked=str(row.get("unblocked", "the server serves")),
        source=str(row["source"]),
        flags=_texts(row.get("flags")),
        more_flags=tuple(
            (str(each["since"]), _texts(each["flags"])) for each in cast("Sequence[Row]", row.get("more_flags") or ())
        ),
        without=_texts(row.get("without")),
        environment={str(name): str(value) for name, value in _map(row.get("environment")).items()},
        values={str(name): str(value) for name, value in _map(row.get("values")).items()},
        concurrencies=tuple(int(each) for each in _texts(row.get("concurrencies"))) or (1,),
        probes=tuple(cast("Sequence[Row]", row.get("probes") or ())),
        failures=_texts(row.get("failures")),
        refused=_texts(row.get("refused")),
        shown=tuple(
            (str(each.get("since", "")), str(each["pattern"])) for each in cast("Sequence[Row]", row.get("shown") or ())
        ),
    )


def _texts(value: JSON) -> tuple[str, ...]:
    return tuple(str(each) for each in value) if isinstance(value, list) else ()


def _map(value: JSON) -> Mapping[str, JSON]:
    return value if isinstance(value, dict) else {}


# ---- asking


@dataclass(frozen=True)
class Sources:
    """The source files of an environment below `site` (site-packages), each read once."""

    site: Path
    _trees: dict[str, ast.Module | str] = field(default_factory=dict)
    _lines: dict[str, list[str]] = field(default_factory=dict)

    def tree(self, file: str) -> ast.Module | None:
        """The syntax tree of a file; None where it is not there. Raises ValueError for one that cannot be read."""
        if file not in self._trees:
            path = self.site / file
            if not path.is_file():
                return None
            try:
                text = path.read_bytes().decode("utf-8", "replace")
                self._trees[file] = ast.parse(text, file)
                self._lines[file] = text.splitlines()
            except (OSError, SyntaxError, ValueError, RecursionError) as error:
                self._trees[file] = f"{file} cannot be read: {error}"
        found = self._trees[file]
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def quote(self, file: str, line: int) -> Quote:
        lines = self._lines.get(file, [])
        return Quote(file, line, lines[line - 1].strip() if 0 < line <= len(lines) else "")


def ask_sources(
    chosen: Sequence[Experiment],
    sources: Sources,
    target: Target,
    versions: Mapping[str, str],
    flags_refused: Callable[[Experiment], Reading | None] | None = None,
) -> tuple[StaticAnswer, ...]:
    """What the sources say of these experiments on a target.

    `versions` are the dists of the environment by normalized name; `flags_refused` says what the server's parser has
    against an experiment's flags, as it is read from source.
    """
    answers = []
    for experiment in chosen:
        readings = []
        if experiment.engine and experiment.engine not in versions:
            readings.append(Reading("unknown", f"{experiment.engine} is not installed here"))
        else:
            if target.gpus is not None and target.gpus < experiment.gpus:
                text = f"it takes {experiment.gpus} GPUs to mean anything, and the server runs on {target.gpus}"
                readings.append(Reading("refuses", text))
            if flags_refused is not None and (refusal := flags_refused(experiment)) is not None:
                readings.append(refusal)
            readings += [reading for probe in experiment.probes for reading in look(probe, sources, target, versions)]
        answers.append(
            StaticAnswer(
                experiment,
                judge(readings),
                tuple(readings),
                spelled(experiment, versions.get(experiment.engine, "")),
            )
        )
    return tuple(answers)


def judge(readings: Sequence[Reading]) -> Answer:
    """One refusal is enough; where nothing refuses, what could not be read leaves it open. Pure."""
    answers = {reading.answer for reading in readings}
    if "refuses" in answers:
        return "refused"
    return "not known" if "unknown" in answers else "can be tried"


def spelled(experiment: Experiment, version: str) -> tuple[str, ...]:
    """The experiment's flags as a version of its server calls them. Pure."""
    from crossgrade.facts.launch_line import LaunchLine, grouped, reached, translate

    more = next((flags for since, flags in reversed(experiment.more_flags) if reached(since, version)), ())
    line = LaunchLine(experiment.engine, (), grouped([*experiment.flags, *more]))
    return translate(line, version).line.words


def parser_question(
    site: Path, experiments_asked: Sequence[Experiment], version: str
) -> Callable[[Experiment], Reading | None]:
    """Asks the server's parser, as its source declares it, about the flags of all experiments at once."""
    from crossgrade.facts.launch_line import grouped
    from crossgrade.gates.launch import parser_row, read_parser

    def words(experiment: Experiment) -> list[str]:
        return [word.replace("{gpus}", "2") for word in spelled(experiment, version)]

    found: dict[str, Reading] = {}
    for engine in dict.fromkeys(each.engine for each in experiments_asked):
        row = parser_row(engine)
        asked = [
            (each.name, group) for each in experiments_asked if each.engine == engine for group in grouped(words(each))
        ]
        if row is None:
            continue
        seen = read_parser(site, row, [group for _, group in asked])
        if seen.problem:
            found |= {name: Reading("unknown", seen.problem) for name, _ in asked}
            continue
        for (name, group), answer in zip(asked, seen.asked, strict=True):
            if answer.error is not None or answer.left_over or group.option not in seen.options:
                why = answer.error or "it has no such option"
                text = f"{engine} {version} does not take {' '.join(group.words)}: {why}"
                found[name] = Reading("refuses", text)
    return lambda experiment: found.get(experiment.name)
