"""Checks of single values while a playbook is read: each gives the value, or notes a problem and gives a default."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from typing import Any

from crossgrade.playbook.argument_types import ConversionError, name_of_type, shown, to_bool
from crossgrade.playbook.model import Condition, Environment, Templated
from crossgrade.playbook.positions import PlaybookProblem, Spot
from crossgrade.playbook.yamltext import MAX_PROBLEMS

TEMPLATE_STARTS = ("{{", "{%", "{#")


def is_template_text(value: Any) -> bool:
    """Whether this is text with a template in it."""
    return isinstance(value, str) and any(start in value for start in TEMPLATE_STARTS)


def has_template(value: Any) -> bool:
    """Whether there is a template anywhere in this value."""
    if isinstance(value, str):
        return is_template_text(value)
    if isinstance(value, Mapping):
        return any(has_template(key) or has_template(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return any(has_template(item) for item in value)
    return False


def is_variable_name(name: object) -> bool:
    return isinstance(name, str) and name.isascii() and name.isidentifier() and not keyword.iskeyword(name)


class Reader:
    """Notes the problems of one file."""

    def __init__(self) -> None:
        self.problems: list[PlaybookProblem] = []

    def note(self, spot: Spot, message: str, remedy: str = "", *, key: bool = False) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(spot.problem(message, remedy, key=key))

    def expected(self, spot: Spot, what: str, value: Any, remedy: str = "") -> None:
        self.note(spot, f"{self.keyword_of(spot)}expected {what}, got {shown(value)}", remedy)

    @staticmethod
    def keyword_of(spot: Spot) -> str:
        named = [step for step in spot.path if isinstance(step, str)]
        return f"`{named[-1]}`: " if named else ""

    def text(self, spot: Spot, value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, str | int | float):
            return str(value)
        self.expected(spot, "text", value)
        return ""

    def variable_name(self, spot: Spot, value: Any) -> str | None:
        if is_variable_name(value):
            return str(value)
        self.note(
            spot,
            f"{shown(value)} cannot be the name of a variable",
            "Write the name itself, without braces."
            if is_template_text(value)
            else "A name is made of letters, digits and `_`, does not start with a digit and is no Python keyword.",
        )
        return None

    def boolean(self, spot: Spot, value: Any) -> Templated:
        if value is None or is_template_text(value):
            return value  # type: ignore[no-any-return]  # None or a string, as just checked
        try:
            return to_bool(value)
        except ConversionError:
            self.expected(spot, "true or false", value)
            return None

    def number(self, spot: Spot, value: Any) -> float | int | str | None:
        if value is None or is_template_text(value):
            return value  # type: ignore[no-any-return]  # None or a string, as just checked
        if isinstance(value, bool):
            self.expected(spot, "a number", value)
            return None
        if isinstance(value, int | float):
            number: float = value
        else:
            try:
                number = float(value) if "." in str(value) else int(value)
            except (ValueError, TypeError):
                self.expected(spot, "a number", value)
                return None
        if not 0 <= number < 1e9:
            self.expected(spot, "a number that is not negative", value)
            return None
        return number

    def whole_number(self, spot: Spot, value: Any) -> int | str | None:
        number = self.number(spot, value)
        if isinstance(number, float):
            if number.is_integer():
                return int(number)
            self.expected(spot, "a whole number", value)
            return None
        return number

    def texts(self, spot: Spot, value: Any, *, split: bool = False) -> tuple[str, ...]:
        """A text or a list of texts; with `split`, a text is split at commas, unless it holds a template."""
        if value is None:
            return ()
        if isinstance(value, str) and split and not is_template_text(value):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        if isinstance(value, list):
            return tuple(
                self.text(spot.at(at), item) for at, item in enumerate(value) if self._is_text(spot.at(at), item)
            )
        return (self.text(spot, value),) if self._is_text(spot, value) else ()

    def alternatives(self, spot: Spot, value: Any) -> tuple[tuple[str, ...], ...]:
        """A text or a list of texts, each of which may itself be a list to choose from."""
        if not isinstance(value, list):
            return tuple((text,) for text in self.texts(spot, value))
        return tuple(found for at, item in enumerate(value) if (found := self.texts(spot.at(at), item)))

    def _is_text(self, spot: Spot, value: Any) -> bool:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return True
        self.expected(spot, "text", value)
        return False

    def conditions(self, spot: Spot, value: Any) -> tuple[Condition, ...]:
        items = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
        found: list[Condition] = []
        for at, item in items:
            here = spot if at is None else spot.at(at)
            if isinstance(item, bool) or (isinstance(item, str) and item.strip()):
                found.append(item)
            elif item is None or item == "":
                self.note(here, f"{self.keyword_of(spot)}a condition is missing", "Remove the keyword, or write one.")
            else:
                self.expected(here, "an expression, true or false", item)
        return tuple(found)

    def mapping(self, spot: Spot, value: Any) -> Mapping[str, Any]:
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        remedy = "Write the names without `- ` in front of them." if isinstance(value, list) else ""
        self.expected(spot, "a mapping (`name: value`)", value, remedy)
        return {}

    def variables(self, spot: Spot, value: Any) -> Mapping[str, Any]:
        found = self.mapping(spot, value)
        for name in found:
            if not is_variable_name(name):
                here = spot.at(name)
                self.note(
                    here,
                    f"{shown(name)} cannot be the name of a variable",
                    "A name is made of letters, digits and `_`, and is no Python keyword.",
                    key=True,
                )
        return found

    def environment(self, spot: Spot, value: Any) -> tuple[Environment, ...]:
        parts = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
        found: list[Environment] = []
        for at, part in parts:
            here = spot if at is None else spot.at(at)
            if part is None:
                continue
            if isinstance(part, dict):
                found.append(part)
                for name, item in part.items():
                    if isinstance(item, dict | list) or not isinstance(name, str):
                        self.note(here.at(name), f'"{name}": an environment variable is text, not {name_of_type(item)}')
            elif is_template_text(part):
                found.append(part)
            else:
                self.expected(here, "a mapping (`NAME: value`)", part)
        return tuple(found)
