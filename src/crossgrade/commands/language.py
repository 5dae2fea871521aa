"""Every name of the language with its state here, asked of the code's own tables: for `doc` and `docs/language.md`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from crossgrade.knowledge import table
from crossgrade.modules import NAMES, load_module
from crossgrade.modules.guide import is_gate
from crossgrade.playbook import keyword_docs
from crossgrade.playbook.arguments import refused_arguments
from crossgrade.playbook.playbook_import import STATEMENT
from crossgrade.playbook.schema import KEYWORDS, MODULES_LATER, Keyword
from crossgrade.playbook.statements import STATEMENTS

State = Literal["same", "different", "absent", "own"]
PLACES = ("play", "role", "block", "task", "handler")
_OF_A_COLLECTION = "Of a collection other than ansible.builtin."
_BEFORE = "real Ansible, before"
KINDS = ("module", "keyword", "filter", "test", "lookup", "variable")


@dataclass(frozen=True)
class Word:
    """One name of the language.

    `state` is `same` (as in Ansible), `different` (on purpose, `note` says why), `absent` (`note` says what to use) or
    `own` (crossgrade's, Ansible has no such name). `on` says where a keyword may stand.
    """

    kind: str
    names: tuple[str, ...]
    what: str
    state: State
    note: str = ""
    on: tuple[str, ...] = ()
    states: Mapping[str, State] = field(default_factory=dict)  # of a keyword, by where Ansible lets it stand

    @property
    def name(self) -> str:
        return self.names[0]


def words(kind: str) -> tuple[Word, ...]:
    """All names of a kind, by name. Raises KeyError for a kind that there is not."""
    found = {"keyword": _keywords, "module": _modules}.get(kind)
    made = list(found() if found else _named(kind, _here(kind)))
    return tuple(sorted(made, key=lambda word: word.name))


def _keywords() -> Iterator[Word]:
    places: dict[str, dict[str, Keyword]] = {}
    for place, keywords in KEYWORDS.items():
        for keyword in keywords.values():
            places.setdefault(keyword.name, {})[place] = keyword
    for name, found in places.items():
        here = tuple(place for place, keyword in found.items() if keyword.supported)
        what = keyword_docs.description(name)
        different = keyword_docs.DIFFERENT.get(name, "")
        states = _states(name, found, "different" if different else "same")
        if not here:
            yield Word("keyword", (name,), what, "absent", next(iter(found.values())).instead, tuple(found), states)
            continue
        lacking = [place for place in found if place not in here]
        note = different
        if lacking:
            absent = f"absent on a {' or '.join(lacking)}: {found[lacking[0]].instead}"
            note = "; ".join(filter(None, (note, absent.rstrip(": "))))
        yield Word("keyword", (name,), what, "different" if note else "same", note, here, states)


def _states(name: str, found: Mapping[str, Keyword], present: State) -> dict[str, State]:
    """The state in each place that Ansible has it in. A role's entry is a block, wherever `roles` is supported."""
    states: dict[str, State] = {place: present if keyword.supported else "absent" for place, keyword in found.items()}
    if name in keyword_docs.ROLE_KEYWORDS:
        states["role"] = states["block"] if KEYWORDS["play"]["roles"].supported else "absent"
    return states


def _modules() -> Iterator[Word]:
    of_ansible: set[str] = set()
    for row in _rows("module"):
        names = _names(row)
        of_ansible.update(names)
        here = [name for name in names if is_module_here(name)]
        if here:
            what = load_module(here[0]).summary if here[0] in NAMES else str(row["what"])
            different = "; ".join(filter(None, (str(row.get("different", "")), _refused(here[0]))))
            yield Word("module", (*here,), what, "different" if different else "same", different)
        else:
            instead = MODULES_LATER.get(names[0]) or str(row.get("instead", ""))
            yield Word("module", names, str(row["what"]), "absent", instead)
    for name, instead in MODULES_LATER.items():
        if name not in of_ansible:
            yield Word("module", (name,), _OF_A_COLLECTION, "absent", instead or _BEFORE)
    for name in NAMES:
        if name not in of_ansible:
            module = load_module(name)
            yield Word("module", (name,), module.summary, "own", "a gate" if is_gate(module) else "")


def _refused(name: str) -> str:
    """The arguments of Ansible's module that this one refuses. [modules](modules.md) says why."""
    refused = refused_arguments(load_module(name).arguments) if name in NAMES else {}
    return f"without {', '.join(f'`{one}`' for one in refused)}" if refused else ""


def is_module_here(name: str) -> bool:
    """Whether tasks can name it: as a module, or as a statement that the loader itself knows."""
    return name in NAMES or name in STATEMENTS or name == STATEMENT


def _here(kind: str) -> Collection[str]:
    if kind == "lookup":
        from crossgrade.playbook.lookups import LOOKUPS

        return LOOKUPS
    if kind == "variable":
        return [name for row in _rows("variable") for name in _names(row)]
    from crossgrade.playbook.jinja_environment import PlaybookEnvironment

    environment: Any = PlaybookEnvironment(keep_backslashes=False)
    found: Collection[str] = {"filter": environment.filters, "test": environment.tests}[kind]
    return found


def _named(kind: str, here: Collection[str]) -> Iterator[Word]:
    known: set[str] = set()
    for row in _rows(kind):
        names = _names(row)
        known.update(names)
        present = tuple(name for name in names if name in here)
        different = str(row.get("different", ""))
        own = row.get("source") == "crossgrade"
        if not present:
            yield Word(kind, names, str(row["what"]), "absent", str(row.get("instead", "")))
        else:
            state: State = "own" if own else "different" if different else "same"
            yield Word(kind, present, str(row["what"]), state, different)
            lacking = tuple(name for name in names if name not in here)
            if lacking:
                yield Word(kind, lacking, str(row["what"]), "absent", f"`{present[0]}`, which is the same")
    for name in here:
        if name not in known:
            yield Word(kind, (name,), "", "own")


def _rows(kind: str) -> list[Any]:
    return [row for row in table("language") if row["kind"] == kind]


def _names(row: Any) -> tuple[str, ...]:
    names: Sequence[str] = row["names"]
    return tuple(str(name) for name in names)
