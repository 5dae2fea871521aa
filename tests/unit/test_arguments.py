"""Typed module arguments: conversion, groups, errors with places, descriptions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, make_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from crossgrade.errors import Place
from crossgrade.playbook.arguments import (
    argument,
    check_arguments,
    free_form_argument,
    parse_arguments,
    raw_argument_names,
    secret_argument_names,
)
from crossgrade.playbook.describe import describe_arguments, json_schema
from crossgrade.playbook.markers import OMIT
from crossgrade.playbook.positions import PlaybookErrors, Spot
from crossgrade.playbook.values import has_template
from crossgrade.playbook.yamltext import parse_yaml


@dataclass(frozen=True)
class Part:
    name: str = argument(doc="Its name.")
    size: int = argument(doc="Its size.", default=1)


@dataclass(frozen=True)
class Arguments:
    text: str = argument(doc="A text.", aliases=("txt", "t"), free_form=True)
    path: Path | None = argument(doc="A path.", default=None)
    number: int = argument(doc="A number.", default=1)
    ratio: float = argument(doc="A ratio.", default=0.5)
    flag: bool = argument(doc="A flag.", default=False)
    state: Literal["present", "absent"] = argument(doc="A state.", default="present")
    switch: str = argument(doc="A switch.", choices=("yes", "no", "auto"), default="auto")
    names: tuple[str, ...] = argument(doc="Names.", default=())
    numbers: list[int] = argument(doc="Numbers.", default_factory=list)
    options: Mapping[str, Any] = argument(doc="Options.", default_factory=dict)
    limits: dict[str, int] = argument(doc="Limits.", default_factory=dict)
    parts: Sequence[Part] = argument(doc="Parts.", default=())
    anything: Any = argument(doc="Anything.", default=None)
    size: int | str = argument(doc="A size.", default=0)
    when: Any = argument(doc="A condition.", default=None, raw=True)
    password: str = argument(doc="A secret.", default="", secret=True)
    source: str = argument(doc="Named by a keyword of Python.", default="", name="from")
    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (("number", "ratio"),)
    required_together: ClassVar[tuple[tuple[str, ...], ...]] = (("path", "flag"),)


def parse(**raw: Any) -> Arguments:
    return parse_arguments(Arguments, {"text": "x", **raw})


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("text", 5, "5"),
        ("text", True, "True"),
        ("path", "/a//b", Path("/a//b")),
        ("number", "17", 17),
        ("number", 2.0, 2),
        ("ratio", "1e-3", 0.001),
        ("ratio", 2, 2.0),
        ("flag", "Yes", True),
        ("flag", "off", False),
        ("flag", 1, True),
        ("state", "absent", "absent"),
        ("switch", True, "yes"),
        ("switch", False, "no"),
        ("names", "a,b", ("a", "b")),
        ("names", ["a", 1], ("a", "1")),
        ("names", 3, ("3",)),
        ("numbers", ["1", 2], [1, 2]),
        ("numbers", "1,2", [1, 2]),
        ("options", '{"a": [1]}', {"a": [1]}),
        ("options", "a=1 b='2 3'", {"a": "1", "b": "2 3"}),
        ("limits", {"a": "5"}, {"a": 5}),
        ("parts", [{"name": "x"}, {"name": "y", "size": "2"}], (Part("x"), Part("y", 2))),
        ("anything", [1, {"a": None}], [1, {"a": None}]),
        ("size", "8G", "8G"),
        ("size", 8, 8),
        ("number", None, 1),
        ("number", OMIT, 1),
    ],
)
def test_conversion(name: str, given: Any, expected: Any) -> None:
    made = {"path": "/a", "flag": True} if name in ("path", "flag") else {}
    value = getattr(parse(**{**made, name: given}), name)
    assert value == expected
    assert type(value) is type(expected)


def test_paths_expand_home_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert parse(path="~/x", flag=True).path == Path("/home/somebody/x")
    assert parse(path="$HOME/x", flag=True).path == Path("/home/somebody/x")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, 'the argument "text" is missing'),
        ({"text": OMIT}, 'the argument "text" is missing'),
        ({"text": None}, 'the argument "text" is missing'),
        ({"text": ["x"]}, '"text": expected text, got a list'),
        ({"text": "x", "t": "y"}, '"text" and "t" are two names of one argument'),
        ({"text": "x", "nubmer": 1}, 'there is no argument "nubmer"'),
        ({"text": "x", "number": "1.5"}, '"number": expected a whole number, got "1.5"'),
        ({"text": "x", "number": True}, "expected a whole number, got true"),
        ({"text": "x", "number": "9" * 5000}, "expected a whole number"),
        ({"text": "x", "ratio": "fast"}, "expected a number"),
        ({"text": "x", "flag": "maybe"}, "expected true or false"),
        ({"text": "x", "state": "prsent"}, 'expected one of present, absent, got "prsent". Did you mean "present"?'),
        ({"text": "x", "numbers": [1, "x"]}, "item 2: expected a whole number"),
        ({"text": "x", "limits": {"a": "b"}}, '"a": expected a whole number'),
        ({"text": "x", "options": "x"}, "expected a mapping"),
        ({"text": "x", "parts": [{"nam": "x"}]}, 'item 1: there is no argument "nam"'),
        ({"text": "x", "names": {"a": 1}}, "expected a list"),
        ({"text": "x", "path": "a\0b", "flag": True}, "NUL"),
        ({"text": "x", "path": "", "flag": True}, "empty text"),
        ({"text": "x", "number": 1, "ratio": 1}, 'only one of "number", "ratio" can be given'),
        ({"text": "x", "password": ["hunter2"]}, '"password": expected text (the value is not shown)'),
        ({"text": "x", "path": "/a"}, 'with "path" also "flag" must be given'),
    ],
)
def test_mistakes(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(PlaybookErrors) as caught:
        parse_arguments(Arguments, raw, Place("p.yml", 3, 5))
    assert message in "\n".join(str(error) for error in caught.value.errors)
    assert caught.value.place == Place("p.yml", 3, 5)


def test_all_mistakes_at_once_each_with_its_own_place() -> None:
    source = parse_yaml("copy:\n  number: x\n  flag: y\n  nope: 1\n", "p.yml")
    spot = Spot(source).at("copy")
    with pytest.raises(PlaybookErrors) as caught:
        parse_arguments(Arguments, spot.node.value, spot)
    places = [(error.place.line, error.place.column) for error in caught.value.errors if error.place]
    assert places == [(1, 1), (2, 11), (3, 3), (4, 3)]


def test_static_check_leaves_templates_alone() -> None:
    raw = {
        "text": "{{ a }}",
        "number": "{{ b }}",
        "names": ["{{ c }}"],
        "flag": "x",
        "path": "{{ d }}",
        "nope": "{{ e }}",
    }
    problems = check_arguments(Arguments, raw, None, has_template)
    assert [problem.message for problem in problems] == [
        'argument "flag": expected true or false, got "x"',
        'there is no argument "nope"',
    ]


def test_what_a_template_may_leave_out_is_not_counted() -> None:
    """`omit` decides when the task is reached, so neither is a fault before."""

    def problems(**raw: Any) -> list[str]:
        return [one.message for one in check_arguments(Arguments, {"text": "x", **raw}, None, has_template)]

    assert problems(number="{{ 1 if first else omit }}", ratio="{{ omit if first else 0.5 }}") == []
    assert problems(number=1, ratio="{{ omit if first else 0.5 }}") == []
    assert problems(number=1, ratio="{{ half }}") == ['only one of "number", "ratio" can be given']
    assert problems(path="{{ place if place else omit }}", flag="{{ true if place else omit }}") == []
    assert problems(path="{{ place if place else omit }}") == []
    assert problems(path="{{ place }}") == ['with "path" also "flag" must be given']


def test_names_with_a_special_treatment() -> None:
    assert raw_argument_names(Arguments) == {"when"}
    assert secret_argument_names(Arguments) == {"password"}
    assert free_form_argument(Arguments) == "text"
    assert parse(**{"from": "a"}).source == "a"


def test_the_rest_of_the_keys() -> None:
    @dataclass(frozen=True)
    class SetFact:
        facts: Mapping[str, Any] = argument(doc="Variables.", rest=True)
        cacheable: bool = argument(doc="Kept.", default=False)

    made = parse_arguments(SetFact, {"a": 1, "cacheable": "yes", "b": [2]})
    assert made == SetFact({"a": 1, "b": [2]}, True)
    with pytest.raises(FrozenInstanceError):
        made.cacheable = False  # type: ignore[misc]  # that it is refused is what is tested


def test_a_field_must_be_declared_with_argument() -> None:
    wrong = make_dataclass("Wrong", [("a", int)])
    with pytest.raises(TypeError, match=r"Wrong\.a is not declared"):
        parse_arguments(wrong, {})
    unsupported = make_dataclass("Unsupported", [("a", complex, argument(doc="x"))])
    with pytest.raises(TypeError, match="cannot be the type of an argument"):
        parse_arguments(unsupported, {})


def test_description() -> None:
    described = {one.name: one for one in describe_arguments(Arguments)}
    assert described["text"].required
    assert described["text"].aliases == ("txt", "t")
    assert (described["names"].type, described["names"].elements, described["names"].default) == ("list", "str", [])
    assert described["state"].choices == ("present", "absent")
    assert (described["path"].type, described["path"].default) == ("path", None)
    assert described["from"].doc == "Named by a keyword of Python."


def test_json_schema_is_plain_json_and_names_everything() -> None:
    schema = json_schema(Arguments)
    assert json.loads(json.dumps(schema)) == schema
    body = schema["anyOf"][0]
    assert set(body["properties"]) >= {"text", "txt", "t", "from", "number"}
    assert body["additionalProperties"] is False
    assert body["allOf"] == [{"anyOf": [{"required": ["text"]}, {"required": ["txt"]}, {"required": ["t"]}]}]


def test_importing_arguments_loads_neither_jinja_nor_yaml() -> None:
    program = "import sys, crossgrade.playbook.arguments; print({'jinja2', 'yaml'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
