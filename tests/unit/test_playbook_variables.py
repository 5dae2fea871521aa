"""Precedence of variables, and variables from the command line."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from crossgrade.errors import ExitCode, WrongOptionsError
from crossgrade.playbook.extra_vars import parse_extra_vars
from crossgrade.playbook.templating import Templar
from crossgrade.playbook.variables import Precedence, Scope


def test_precedence_decides_and_not_the_order_of_adding() -> None:
    for low, high in itertools.combinations(Precedence, 2):
        for order in ((low, high), (high, low)):
            scope = Scope()
            for precedence in order:
                scope = scope.with_layer(precedence, {"x": precedence.name})
            assert scope.lookup("x") == high.name


def test_within_one_precedence_the_later_layer_wins() -> None:
    scope = Scope().with_layer(Precedence.SET_FACTS, {"x": 1, "y": 1}).with_layer(Precedence.SET_FACTS, {"x": 2})
    assert scope.flatten() == {"x": 2, "y": 1}
    assert scope.names() == {"x", "y"}
    assert "y" in scope
    assert "z" not in scope
    with pytest.raises(KeyError):
        scope.lookup("z")


def test_scopes_are_immutable() -> None:
    base = Scope().with_layer(Precedence.PLAY_VARS, {"x": 1})
    above = base.with_layer(Precedence.EXTRA_VARS, {"x": 2})
    assert (base.lookup("x"), above.lookup("x")) == (1, 2)
    assert base.with_layer(Precedence.LOOP, {}) is base


def test_a_variable_sees_the_winning_value_of_another() -> None:
    scope = Scope().with_layer(Precedence.PLAY_VARS, {"x": 1, "y": "{{ x }}"})
    assert Templar(scope.with_layer(Precedence.EXTRA_VARS, {"x": 2})).template("{{ y }}") == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {}),
        (["a=1"], {"a": "1"}),
        (["a=1 b='2 3' c=\"4 5\""], {"a": "1", "b": "2 3", "c": "4 5"}),
        (["a=1", "a=2"], {"a": "2"}),
        (["a="], {"a": ""}),
        (["a=b=c"], {"a": "b=c"}),
        (["a='{{ b }}'"], {"a": "{{ b }}"}),
        (["a={{ b | default('c d') }}"], {"a": "{{ b | default('c d') }}"}),
        (['{"a": 1, "b": [true, null]}'], {"a": 1, "b": [True, None]}),
        (["{a: 1, b: yes}"], {"a": 1, "b": True}),
        ([""], {}),
        (["a=1\nb=2"], {"a": "1", "b": "2"}),
    ],
)
def test_extra_vars(options: list[str], expected: dict[str, Any]) -> None:
    assert parse_extra_vars(options) == expected


def test_extra_vars_from_files(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("a: 1\nb: '{{ c }}'\n", encoding="utf-8")
    (tmp_path / "b.json").write_text('{"b": 2}', encoding="utf-8")
    assert parse_extra_vars([f"@{tmp_path / 'a.yml'}", f"@{tmp_path / 'b.json'}", "c=3"]) == {"a": 1, "b": 2, "c": "3"}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("word", "expected name=value, got word"),
        ("a=1 word", "expected name=value, got word"),
        ("a='1", "not closed"),
        ("{a", "not valid JSON or YAML"),
        ("[1]", "expected a mapping"),
        ("@/nope/nope.yml", "cannot be read"),
        ('{"a-b": 1}', "cannot be the name of a variable"),
        ("{1: 2}", "cannot be the name of a variable"),
        ("class=1", "cannot be the name of a variable"),
    ],
)
def test_mistakes_in_extra_vars(option: str, message: str) -> None:
    with pytest.raises(WrongOptionsError, match=message) as caught:
        parse_extra_vars([option])
    assert caught.value.exit_code == ExitCode.WRONG_OPTIONS
