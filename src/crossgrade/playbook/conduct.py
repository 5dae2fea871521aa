"""How a task is carried out and where: keywords that a play hands to its blocks, and a block to its tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from crossgrade.playbook.argument_types import shown
from crossgrade.playbook.model import ACTIONS, Conduct, Prompt
from crossgrade.playbook.positions import Spot
from crossgrade.playbook.schema import KEYWORDS, PREFIXES
from crossgrade.playbook.suggest import listing
from crossgrade.playbook.values import Reader, is_template_text, is_variable_name

ModuleDefaults = Mapping[str, Mapping[str, Any]]
"""For each module the arguments that its tasks have unless they say otherwise."""


def read_conduct(reader: Reader, spot: Spot, value: Mapping[Any, Any]) -> Conduct:
    """Those of the keywords that stand in one play, block or task."""
    readers: dict[str, Callable[[Spot, Any], Any]] = {
        "bool": reader.boolean,
        "number": reader.number,
        "text": lambda here, given: None if given is None else reader.text(here, given),
    }
    found: dict[str, Any] = {}
    for field in fields(Conduct):
        keyword = KEYWORDS["task"][field.name]
        found[field.name] = read = readers[keyword.kind](spot.at(field.name), value.get(field.name))
        if keyword.choices and read is not None and not is_template_text(read) and read not in keyword.choices:
            reason = "become goes through sudo only" if field.name == "become_method" else "a host has one connection"
            if "hosts" not in value:  # a play's own connection has other choices, and its own check
                reader.note(spot.at(field.name), f"`{field.name}`: {reason}, not {shown(read)}", _choices(field.name))
    return Conduct(**found)


def _choices(name: str) -> str:
    return f"Here can stand: {listing(KEYWORDS['task'][name].choices)}."


def read_module_defaults(reader: Reader, spot: Spot, value: Any, outer: ModuleDefaults) -> ModuleDefaults:
    """`module_defaults` of one play, block or task over those around it: for a module, the nearest ones are added."""
    found = {name: dict(arguments) for name, arguments in outer.items()}
    for at, part in enumerate(value) if isinstance(value, list) else [(None, value)]:
        here = spot if at is None else spot.at(at)
        for name, arguments in reader.mapping(here, part).items():
            if str(name).startswith("group/"):
                reader.note(
                    here.at(name),
                    f"there is no group of modules {shown(name)}",
                    "Groups come with collections, and here is ansible.builtin only: name each module.",
                    key=True,
                )
                continue
            given = reader.mapping(here.at(name), arguments)
            short = short_name(str(name))
            found[short] = {**found.get(short, {}), **given}
    return found


def short_name(key: str) -> str:
    """Without `ansible.builtin.`"""
    for prefix in PREFIXES:
        if key.startswith(prefix):
            return key[len(prefix) :]
    return key


def read_sizes(reader: Reader, spot: Spot, value: Any) -> tuple[int | str, ...]:
    """`serial`: how many hosts each batch has, as numbers, percentages (`30%`) or templates.

    As in Ansible, a number below 1 stands for all hosts.
    """
    found: list[int | str] = []
    for at, part in enumerate(value) if isinstance(value, list) else [(None, value)]:
        here = spot if at is None else spot.at(at)
        if part is None:
            continue
        text = str(part).strip()
        if isinstance(part, int) and not isinstance(part, bool):
            found.append(part)
        elif is_template_text(text) or text.removesuffix("%").isdigit():
            found.append(int(text) if text.isdigit() else text)
        else:
            reader.expected(here, "a number of hosts, or a percentage such as 30%", part)
    return tuple(found)


def read_choice(reader: Reader, spot: Spot, name: str, value: Any, remedy: str = "") -> str | None:
    """A play's keyword that has few values."""
    text = reader.text(spot.at(name), value.get(name)) or None
    choices = KEYWORDS["play"][name].choices
    if text is not None and text not in choices:
        several = f"one of {listing(choices)}" if len(choices) > 1 else f"only `{choices[0]}` is possible here"
        reader.note(spot.at(name), f"`{name}`: {'expected ' if len(choices) > 1 else ''}{several}", remedy)
        return None
    return text


_PROMPT_WORDS = ("name", "prompt", "default", "private", "confirm", "unsafe", "encrypt", "salt", "salt_size")


def read_prompts(reader: Reader, spot: Spot, value: Any) -> tuple[Prompt, ...]:
    """`vars_prompt`: the questions that are asked before the play is planned."""
    if value is None:
        return ()
    if not isinstance(value, list):
        reader.expected(spot, "a list of questions (`- name: …`)", value)
        return ()
    found = []
    for at, item in enumerate(value):
        here = spot.at(at)
        given = reader.mapping(here, item)
        if not given:
            continue
        for key in given:
            if key not in _PROMPT_WORDS:
                reader.note(here.at(key), f"`vars_prompt` has no keyword `{key}`", listing(_PROMPT_WORDS), key=True)
        if given.get("encrypt"):
            reader.note(
                here.at("encrypt"),
                "`encrypt` is not supported: crossgrade makes no hashes of passwords",
                "Give the hash itself as the answer, or with -e.",
                key=True,
            )
        name = given.get("name")
        if not is_variable_name(name):
            reader.note(here.at("name"), "a question of `vars_prompt` needs `name`, the name of a variable")
            continue
        found.append(
            Prompt(
                name=str(name),
                text=reader.text(here.at("prompt"), given.get("prompt")) or str(name),
                default=given.get("default"),
                private=_plain_boolean(reader, here.at("private"), given.get("private"), default=True),
                confirm=_plain_boolean(reader, here.at("confirm"), given.get("confirm"), default=False),
            )
        )
    return tuple(found)


def _plain_boolean(reader: Reader, spot: Spot, value: Any, *, default: bool) -> bool:
    read = reader.boolean(spot, value)
    return default if read is None or isinstance(read, str) else read


@dataclass(frozen=True)
class Action:
    """`action` or `local_action` taken apart: which module, and its arguments as they would stand below its name."""

    key: str
    module: str
    arguments: Any


def read_action(reader: Reader, spot: Spot, value: Mapping[Any, Any]) -> Action | None:
    """The module that a task names with `action` or `local_action`; None where it has neither or names none."""
    key = next((name for name in ACTIONS if name in value), None)
    if key is None:
        return None
    given = value[key]
    if isinstance(given, dict):
        module = given.get("module")
        if isinstance(module, str) and module.split():
            name, *words = module.split(None, 1)
            rest = {word: item for word, item in given.items() if word != "module"}
            return Action(key, name, " ".join(words) if words and not rest else rest)
    elif isinstance(given, str) and given.split():
        name, *words = given.split(None, 1)
        return Action(key, name, words[0] if words else None)
    reader.expected(spot.at(key), "a module with its arguments (`action: command uptime`)", given)
    return None
