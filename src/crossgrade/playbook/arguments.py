"""Typed arguments of a task module: declared once, checked before a run, documented from the same place.

    @dataclass(frozen=True)
    class Arguments:
        path: Path = argument(doc="The file to remove.")
        state: Literal["present", "absent"] = argument(doc="What it should be.", default="present")

A value is converted as Ansible converts it: `yes` to true, `"8080"` to 8080, `a,b` to a list. A class may
declare `mutually_exclusive`, `required_together` and `required_one_of`, each a sequence of groups of names, and
`refused`: arguments that Ansible has and the module has not, each with the reason.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from crossgrade.errors import Place
from crossgrade.playbook.argument_types import (
    ConversionError,
    Converter,
    Expected,
    converter_of,
    dataclass_hints,
    describe_expected,
)
from crossgrade.playbook.markers import is_omit
from crossgrade.playbook.positions import PlaybookErrors, PlaybookProblem, Spot
from crossgrade.playbook.suggest import did_you_mean, listing

ArgumentsT = TypeVar("ArgumentsT")
_METADATA = "crossgrade.argument"


@dataclasses.dataclass(frozen=True)
class ArgumentOptions:
    """What `argument()` was told."""

    doc: str
    choices: tuple[Any, ...] = ()
    aliases: tuple[str, ...] = ()
    free_form: bool = False
    rest: bool = False
    may_be_unknown: bool = False
    raw: bool = False
    secret: bool = False
    name: str | None = None


def argument(
    *,
    doc: str,
    default: Any = dataclasses.MISSING,
    default_factory: Callable[[], Any] | None = None,
    choices: Sequence[Any] = (),
    aliases: Sequence[str] = (),
    free_form: bool = False,
    rest: bool = False,
    may_be_unknown: bool = False,
    raw: bool = False,
    secret: bool = False,
    name: str | None = None,
) -> Any:
    """A field of a module's `Arguments`. Without a default the argument is required.

    `free_form`: it takes the text of `module: text`. `rest`: it takes every key that no other field has;
    with `may_be_unknown`, in a plan also keys whose values only the run knows (`Unknown`).
    `raw`: it is handed over as written, templates in it unexpanded (conditions). `secret`: never shown.
    `name`: the playbook's spelling where it is not a Python name.
    """
    options = ArgumentOptions(doc, tuple(choices), tuple(aliases), free_form, rest, may_be_unknown, raw, secret, name)
    metadata = {_METADATA: options}
    if rest and default is dataclasses.MISSING and default_factory is None:
        default_factory = dict
    if default_factory is not None:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Argument:
    """One argument of a module, with what converts its values."""

    field: str
    name: str
    options: ArgumentOptions
    expected: Expected
    converter: Converter
    required: bool
    default: Any


@dataclasses.dataclass(frozen=True)
class _Declaration:
    arguments: tuple[Argument, ...]
    by_spelling: Mapping[str, Argument]
    rest: Argument | None


_declarations: dict[type[Any], _Declaration] = {}


def _declaration(arguments_type: type[Any]) -> _Declaration:
    known = _declarations.get(arguments_type)
    if known is None:
        known = _declarations[arguments_type] = _declare(arguments_type)
    return known


def _declare(arguments_type: type[Any]) -> _Declaration:
    hints = dataclass_hints(arguments_type)
    arguments: list[Argument] = []
    for field in dataclasses.fields(arguments_type):
        options = field.metadata.get(_METADATA)
        if not isinstance(options, ArgumentOptions):
            raise TypeError(f"{arguments_type.__qualname__}.{field.name} is not declared with argument()")
        expected = describe_expected(hints[field.name], options.choices)
        has_factory = field.default_factory is not dataclasses.MISSING
        required = field.default is dataclasses.MISSING and not has_factory
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        arguments.append(
            Argument(
                field=field.name,
                name=options.name or field.name,
                options=options,
                expected=expected,
                converter=converter_of(hints[field.name], options.choices, _parse_nested),
                required=required,
                default=None if required else default,
            )
        )
    rest = next((one for one in arguments if one.options.rest), None)
    named = [one for one in arguments if not one.options.rest]
    by_spelling = {spelling: one for one in named for spelling in (one.name, *one.options.aliases)}
    return _Declaration(tuple(arguments), by_spelling, rest)


def declared_arguments(arguments_type: type[Any]) -> tuple[Argument, ...]:
    """The arguments of a module in the order of their declaration."""
    return _declaration(arguments_type).arguments


def refused_arguments(arguments_type: type[Any]) -> Mapping[str, str]:
    """What Ansible's module of this name has and this one refuses: each spelling with its reason."""
    refused: Mapping[str, str] = getattr(arguments_type, "refused", {})
    return refused


def raw_argument_names(arguments_type: type[Any]) -> frozenset[str]:
    """The spellings of the arguments that are never templated."""
    spellings = _declaration(arguments_type).by_spelling
    return frozenset(spelling for spelling, one in spellings.items() if one.options.raw)


def rest_that_may_be_unknown(arguments_type: type[Any], given: Iterable[str]) -> frozenset[str]:
    """Of the keys that a task gives, those whose values need not be known yet in a plan."""
    declaration = _declaration(arguments_type)
    if declaration.rest is None or not declaration.rest.options.may_be_unknown:
        return frozenset()
    return frozenset(given) - declaration.by_spelling.keys()


def secret_argument_names(arguments_type: type[Any]) -> frozenset[str]:
    """The spellings of the arguments whose values must never be shown."""
    spellings = _declaration(arguments_type).by_spelling
    return frozenset(spelling for spelling, one in spellings.items() if one.options.secret)


def free_form_argument(arguments_type: type[Any]) -> str | None:
    """The argument that takes the text of `module: text`, or None."""
    return next((one.name for one in declared_arguments(arguments_type) if one.options.free_form), None)


def parse_arguments(
    arguments_type: type[ArgumentsT],
    raw: Mapping[str, Any],
    place: Spot | Place | None = None,
) -> ArgumentsT:
    """The module's arguments from the values of a task, templates expanded.

    `place` is where the values stand: with a `Spot`, each problem gets the place of its own value. A value
    that is `omit` counts as not given. Raises PlaybookErrors with every problem.
    """
    values, problems = _convert(arguments_type, raw, place, is_template=None)
    if problems:
        raise PlaybookErrors(problems)
    return arguments_type(**values)


def check_arguments(
    arguments_type: type[Any],
    raw: Mapping[str, Any],
    place: Spot | Place | None,
    is_template: Callable[[Any], bool],
) -> list[PlaybookProblem]:
    """The problems that can be seen without running: names, groups, and types of values without templates."""
    return _convert(arguments_type, raw, place, is_template=is_template)[1]


def _parse_nested(nested: type[Any], raw: Mapping[str, Any]) -> Any:
    """For lists of dataclasses: the first problem as a ConversionError."""
    values, problems = _convert(nested, raw, None, is_template=None)
    if problems:
        raise ConversionError("; ".join(problem.message for problem in problems))
    return nested(**values)


class _Problems:
    def __init__(self, place: Spot | Place | None) -> None:
        self.place = place
        self.found: list[PlaybookProblem] = []

    def at(self, spelling: str | None, message: str, remedy: str = "", *, key: bool = False) -> None:
        if isinstance(self.place, Spot):
            spot = self.place if spelling is None else self.place.at(spelling)
            self.found.append(spot.problem(message, remedy, key=key or spelling is None))
        else:
            self.found.append(PlaybookProblem(message, remedy=remedy, place=self.place))


def _convert(
    arguments_type: type[Any],
    raw: Mapping[str, Any],
    place: Spot | Place | None,
    is_template: Callable[[Any], bool] | None,
) -> tuple[dict[str, Any], list[PlaybookProblem]]:
    declaration = _declaration(arguments_type)
    problems = _Problems(place)
    values: dict[str, Any] = {}
    spelled: dict[str, str] = {}  # field → the spelling that gave its value
    rest: dict[str, Any] = {}
    uncertain: set[str] = set()  # fields whose templates may leave them out; that is known when the task is reached
    for spelling, value in raw.items():
        one = declaration.by_spelling.get(spelling)
        if is_omit(value):
            continue
        if one is None:
            if declaration.rest is not None:
                rest[spelling] = value
            elif (reason := refused_arguments(arguments_type).get(spelling)) is None:
                _unknown_name(str(spelling), declaration, problems)
            elif value is not None and value is not False:  # else it asks for nothing
                problems.at(spelling, f'the argument "{spelling}" of Ansible is refused: {reason}', key=True)
            continue
        if one.field in spelled:
            problems.at(
                spelling,
                f'"{spelled[one.field]}" and "{spelling}" are two names of one argument',
                "Give it once.",
                key=True,
            )
            continue
        if value is None and not one.expected.nullable:
            continue  # as Ansible has it: an empty value is one that is not given
        spelled[one.field] = spelling
        if is_template is not None and (one.options.raw or is_template(value)):
            if isinstance(value, str) and re.search(r"\bomit\b", value):
                uncertain.add(one.field)
            continue
        try:
            values[one.field] = one.converter(value)
        except ConversionError as error:
            reason = f"expected {one.expected.text} (the value is not shown)" if one.options.secret else str(error)
            problems.at(spelling, f'argument "{spelling}": {reason}')
    if declaration.rest is not None:
        values[declaration.rest.field] = rest
    for one in declaration.arguments:
        if one.required and one.field not in spelled and not one.options.rest:
            problems.at(None, f'the argument "{one.name}" is missing', _about(one))
    _check_groups(arguments_type, declaration, set(spelled), uncertain, problems)
    return values, problems.found


def _about(one: Argument) -> str:
    return f"It is {one.expected.text}: {one.options.doc}"


def _unknown_name(spelling: str, declaration: _Declaration, problems: _Problems) -> None:
    names = [one.name for one in declaration.arguments]
    remedy = did_you_mean(spelling, declaration.by_spelling)
    if not remedy:
        remedy = f"The arguments are: {listing(names)}." if names else "It takes no arguments."
    problems.at(spelling, f'there is no argument "{spelling}"', remedy, key=True)


def _check_groups(
    arguments_type: type[Any], declaration: _Declaration, given: set[str], uncertain: set[str], problems: _Problems
) -> None:
    def members(group: Sequence[str], among: set[str]) -> list[str]:
        present: list[str] = []
        for name in group:
            one = declaration.by_spelling.get(name)
            if (one.field if one is not None else name) in among:
                present.append(name)
        return present

    for group in getattr(arguments_type, "mutually_exclusive", ()):
        present = members(group, given - uncertain)
        if len(present) > 1:
            problems.at(present[-1], f"only one of {_names(group)} can be given", key=True)
    for group in getattr(arguments_type, "required_together", ()):
        present = members(group, given)
        if members(group, uncertain):
            continue
        if present and len(present) < len(group):
            missing = [name for name in group if name not in present]
            problems.at(present[0], f"with {_names(present)} also {_names(missing)} must be given", key=True)
    for group in getattr(arguments_type, "required_one_of", ()):
        if not members(group, given):
            problems.at(None, f"one of {_names(group)} must be given")


def _names(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
