"""A small catalogue of modules, and playbooks from text, for tests of the language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from crossgrade.errors import PlaybookError
from crossgrade.playbook.arguments import argument
from crossgrade.playbook.build import build_playbook
from crossgrade.playbook.loader import ModuleCatalogue
from crossgrade.playbook.model import Playbook
from crossgrade.playbook.positions import PlaybookErrors, PlaybookProblem
from crossgrade.playbook.yamltext import parse_yaml


@dataclass(frozen=True)
class CommandArguments:
    cmd: str | None = argument(doc="The command.", default=None, free_form=True)
    argv: tuple[str, ...] = argument(doc="Its words.", default=())
    creates: Path | None = argument(doc="A file that it makes.", default=None)
    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (("cmd", "argv"),)
    required_one_of: ClassVar[tuple[tuple[str, ...], ...]] = (("cmd", "argv"),)


@dataclass(frozen=True)
class CopyArguments:
    dest: Path = argument(doc="Where to.", aliases=("path",))
    src: Path | None = argument(doc="Where from.", default=None)
    content: str | None = argument(doc="The text.", default=None)
    force: bool = argument(doc="Even if it is there.", default=True)
    state: Literal["present", "absent"] = argument(doc="What it should be.", default="present")
    retries: int = argument(doc="How often.", default=0)


@dataclass(frozen=True)
class SetFactArguments:
    cacheable: bool = argument(doc="Kept.", default=False)
    facts: Mapping[str, Any] = argument(doc="The variables.", rest=True)


@dataclass(frozen=True)
class AssertArguments:
    that: tuple[Any, ...] = argument(doc="The conditions.", raw=True)


MODULES: dict[str, type[Any]] = {
    "assert": AssertArguments,
    "command": CommandArguments,
    "copy": CopyArguments,
    "set_fact": SetFactArguments,
}
CATALOGUE = ModuleCatalogue(MODULES, MODULES.get)


def playbook_of(text: str) -> Playbook:
    """The playbook in a text; raises PlaybookErrors."""
    return build_playbook(parse_yaml(text, "p.yml"), Path("p.yml"), CATALOGUE)


def problems_of(text: str) -> tuple[PlaybookProblem, ...]:
    """What is wrong with a playbook; nothing when it is right."""
    try:
        playbook_of(text)
    except PlaybookErrors as errors:
        return errors.errors
    except PlaybookError as error:
        return (PlaybookProblem(error.message, remedy=error.remedy, place=error.place),)
    return ()
