"""`import_playbook`: the plays of another file, in the place of this entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from crossgrade.errors import PlaybookError
from crossgrade.playbook.imports import as_problem
from crossgrade.playbook.library import at_home, is_file
from crossgrade.playbook.model import Block, Condition, Play, Step
from crossgrade.playbook.positions import PlaybookErrors, Spot
from crossgrade.playbook.schema import PREFIXES

if TYPE_CHECKING:
    from crossgrade.playbook.build import Builder

STATEMENT = "import_playbook"
_KEYWORDS = frozenset(("name", "vars", "tags", "when"))


def import_playbook_key(value: Any) -> str | None:
    """How this entry of a playbook spells `import_playbook`, or None when it does not."""
    spellings = (STATEMENT, *(prefix + STATEMENT for prefix in PREFIXES))
    return next((key for key in spellings if isinstance(value, dict) and key in value), None)


def imported_plays(builder: Builder, spot: Spot, value: Mapping[str, Any], key: str, uid: str) -> tuple[Play, ...]:
    """The plays of the file, with this entry's tags, conditions and variables. Problems are noted."""
    from crossgrade.playbook.build import Builder, Inherited, Keywords

    reader = builder.reader
    for other in value:
        if other != key and other not in _KEYWORDS:
            reader.note(spot.at(other), f"`{STATEMENT}` has no keyword `{other}`", key=True)
    own = reader.variables(spot.at("vars"), value.get("vars"))
    name = builder.imports.static_name(spot.at(key), value[key], Inherited(vars=own))
    if name is None:
        return ()
    file = builder.directory / at_home(name)
    if str(file) in builder.chain:
        circle = " → ".join([*builder.chain[builder.chain.index(str(file)) :], str(file)])
        reader.note(spot.at(key), f"the playbook imports itself: {circle}")
        return ()
    if not is_file(file):
        reader.note(spot.at(key), f"there is no playbook `{name}`", f"Looked for: {file}.")
        return ()
    try:
        source = builder.library.source(file)
    except PlaybookErrors as errors:
        reader.problems += errors.errors
        return ()
    except PlaybookError as error:
        reader.problems.append(as_problem(error))
        return ()
    inner = Builder(reader, builder.library, file.parent, (*builder.chain, str(file)))
    read = Keywords(reader, spot, value)
    tags, when = read.tags(), read.conditions("when")
    return tuple(
        _with_keywords(play, own, tags, when) for play in inner.plays(Spot(source), source.root.value, f"{uid}/")
    )


def _with_keywords(
    play: Play, variables: Mapping[str, Any], tags: tuple[str, ...], when: tuple[Condition, ...]
) -> Play:
    sections: dict[str, Any] = {
        name: tuple(_inside(step, tags, when) for step in steps)
        for name, steps in (("pre_tasks", play.pre_tasks), ("tasks", play.tasks), ("post_tasks", play.post_tasks))
    }
    return replace(play, vars={**play.vars, **variables}, tags=_united(tags, play.tags), **sections)


def _inside(step: Step, tags: tuple[str, ...], when: tuple[Condition, ...]) -> Step:
    if isinstance(step, Block):
        parts: dict[str, Any] = {
            name: tuple(_inside(each, tags, when) for each in getattr(step, name))
            for name in ("block", "rescue", "always")
        }
        return replace(step, **parts)
    inherited = step.inherited
    if inherited is not None:
        inherited = replace(inherited, tags=_united(tags, inherited.tags), when=(*when, *inherited.when))
    return replace(step, tags=_united(tags, step.tags), when=(*when, *step.when), inherited=inherited)


def _united(outer: tuple[str, ...], inner: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(outer + inner))
