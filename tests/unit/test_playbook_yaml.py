"""YAML with positions: types, limits, and explanations of mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.work import bounded_work

from crossgrade.errors import ExitCode, PlaybookError
from crossgrade.playbook.loader import load_variables, peek_variables
from crossgrade.playbook.positions import PlaybookErrors, Spot
from crossgrade.playbook.yamltext import UnsafeText, parse_yaml, read_text

BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{at}: &a{at} [{','.join([f'*a{at - 1}'] * 10)}]\n" for at in range(1, 40)
)
MERGING_BOMB = "a0: &a0 {x: 1}\n" + "".join(
    f"a{at}: &a{at} {{<<: [{','.join([f'*a{at - 1}'] * 10)}]}}\n" for at in range(1, 40)
)


def value_of(text: str) -> Any:
    return parse_yaml(text, "p.yml").root.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# only a comment\n", None),
        ("a: 1\n", {"a": 1}),
        (
            "a: [yes, No, on, ~, null, 1.5, 0x10, 1_000, .inf]\n",
            {"a": [True, False, True, None, None, 1.5, 16, 1000, float("inf")]},
        ),
        ("a: 2026-12-01\n", {"a": "2026-12-01"}),
        ("a: '1'\nb: \"x\\n\"\n", {"a": "1", "b": "x\n"}),
        ("a: |\n  one\n  two\nb: >\n  one\n  two\n", {"a": "one\ntwo\n", "b": "one two\n"}),
        ("a: &x {k: 1}\nb: *x\n", {"a": {"k": 1}, "b": {"k": 1}}),
        ("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\n", {"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 3}}),
        (
            "x: &x {a: 1}\nz: &z {a: 2, c: 3}\ny: {<<: [*x, *z]}\n",
            {"x": {"a": 1}, "z": {"a": 2, "c": 3}, "y": {"a": 1, "c": 3}},
        ),
        ("a: !!str 1\n", {"a": "1"}),
        ("'<<': 1\n", {"<<": 1}),
        ("2: a\ntrue: b\n", {2: "a", True: "b"}),
        ("é: ü\n", {"é": "ü"}),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert value_of(text) == value


def test_unsafe_text_is_marked() -> None:
    value = value_of("a: !unsafe '{{ x }}'\n")["a"]
    assert isinstance(value, UnsafeText)
    assert value == "{{ x }}"


@pytest.mark.parametrize(
    ("text", "line", "column", "message", "remedy"),
    [
        ("a: {{ x }}\n", 1, 5, "read as a mapping", "quotes"),
        ("a:\n  b: {{ x }}/bin\n", 2, 6, "needs quotes", "quotes"),
        ("- {{ x }} y\n", 1, 3, "needs quotes", "quotes"),
        ('a: "{{ x }}"/bin\n', 1, 13, "after the closing quote", "whole value"),
        ("a: 'x\nb: 1\n", 1, 4, "never closed", "closing quote"),
        ("a:\n\tb: 1\n", 2, 1, "a tab", "spaces"),
        ("a: b: c\n", 1, 4, "`a:` and `b:` stand in one line", "indented below `a:`"),
        ("- a: 1\n  b: 2\n c: 3\n", 3, 2, "where nothing above it begins", "same column"),
        ("a: 1\nb: 2\na: 3\n", 3, 1, 'the key "a" is there twice, first in line 1', "Remove one"),
        ("a: @x\n", 1, 4, "begins with `@` needs quotes", 'a: "@x"'),
        ("a: *nope\n", 1, 4, "no anchor", "quotes"),
        ("a: &a [*a]\n", 1, 8, "inside its own value", ""),
        ("a: !vault |\n  x\n", 1, 4, "not that of a vault", "encrypt it anew"),
        ("a: !python/object:os.system x\n", 1, 4, "tag", "!unsafe"),
        ("a: !!binary eA==\n", 1, 4, "!!binary", "!unsafe"),
        ("a: 1\n---\nb: 2\n", 2, 1, "second YAML document", "one document"),
        ("a: \x01\n", 1, 4, "U+0001", "text file"),
        ("? [x]\n: 1\n", 1, 3, "cannot be a key", "quotes"),
        ("<<: 3\n", 1, 5, "merges mappings", ""),
    ],
)
def test_mistakes_are_explained_with_their_place(text: str, line: int, column: int, message: str, remedy: str) -> None:
    with pytest.raises(PlaybookErrors) as caught:
        parse_yaml(text, "p.yml")
    problem = caught.value.errors[-1]
    assert problem.place is not None
    assert (problem.place.line, problem.place.column) == (line, column)
    assert message in problem.message
    assert remedy in problem.remedy
    assert caught.value.exit_code == ExitCode.UNREACHABLE


def test_the_excerpt_has_a_caret_below_the_column() -> None:
    with pytest.raises(PlaybookErrors) as caught:
        parse_yaml("first: 1\nsecond: {a: 1, a: 2}\n", "p.yml")
    assert str(caught.value).splitlines()[:3] == [
        'p.yml:2:16: the key "a" is there twice, first in line 2',
        "  2 | second: {a: 1, a: 2}",
        "    |                ^",
    ]


def test_an_excerpt_of_a_long_line_is_cut_and_holds_no_control_characters() -> None:
    with pytest.raises(PlaybookErrors) as caught:
        parse_yaml("a: {" + "x: 1, " + "y" * 500 + ": 1, \tx: 2}\n", "p.yml")
    excerpt = caught.value.errors[0].excerpt
    first, caret = excerpt.splitlines()
    assert len(first) < 110
    assert "\t" not in first
    assert first[caret.index("^")] == "x"


def test_all_duplicates_are_reported_at_once() -> None:
    with pytest.raises(PlaybookErrors) as caught:
        parse_yaml("a: 1\na: 2\nb: {c: 1, c: 2}\nd: !x 1\n", "p.yml")
    assert len(caught.value.errors) == 3
    assert "3 errors" in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "values, counting each alias"),
        (MERGING_BOMB, "values, counting each alias"),
        ("a: &a [x]\nb: [" + "*a, " * 400_000 + "]\n", "each alias"),
        ("".join(f"{'  ' * depth}- \n" for depth in range(1_000)), "nested more than 100 deep"),
        ("? " * 5_000, "nested more than 100 deep"),
        ("[" * 100_000, "nest"),
        ("{a: " * 100_000, "nested more than 100 deep"),
        ("- " * 5_000 + "x\n", "nest"),
        ("- a\n" * 1_200_000, "values"),
        ("x" * 6_000_000, "larger than 5 MB"),
        ('a: "' + "\\x" * 100_000, "not valid YAML"),
    ],
)
def test_hostile_files_are_refused_quickly(text: str, message: str) -> None:
    with bounded_work(10_000_000), pytest.raises(PlaybookError, match=message):
        parse_yaml(text, "p.yml")


def test_places_of_values_and_keys() -> None:
    spot = Spot(parse_yaml("a:\n  - x\n  - {b: 1,  c: 2}\n", "p.yml"))
    assert str(spot.at("a", 1, "c").place) == "p.yml:3:16"
    assert str(spot.at("a", 1, "c").key_place) == "p.yml:3:13"
    assert str(spot.at("a", 0).place) == "p.yml:2:5"
    assert str(spot.at("a", 1, "nope").place) == "p.yml:3:5"


def test_columns_count_characters() -> None:
    spot = Spot(parse_yaml("ééé: {ü: 1}\n", "p.yml"))
    assert str(spot.at("ééé", "ü").place) == "p.yml:1:10"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PlaybookError, match="cannot be read: No such file"):
        read_text(tmp_path / "nope.yml")
    with pytest.raises(PlaybookError, match="cannot be read"):
        read_text(tmp_path)
    latin = tmp_path / "latin.yml"
    latin.write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(PlaybookError, match="not UTF-8") as caught:
        read_text(latin)
    assert caught.value.place is not None
    assert (caught.value.place.line, caught.value.place.column) == (2, 7)
    large = tmp_path / "large.yml"
    with large.open("wb") as stream:
        stream.truncate(200_000_000)
    with pytest.raises(PlaybookError, match="larger than 5 MB"):
        read_text(large)


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "bom.yml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert load_variables(file).values == {"a": 1}


def test_variables_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "vars.yml"
    file.write_text("a: 1\nb-c: 2\nclass: 3\n", encoding="utf-8")
    with pytest.raises(PlaybookErrors) as caught:
        load_variables(file)
    assert [problem.place.line for problem in caught.value.errors if problem.place] == [2, 3]
    file.write_text("- a\n", encoding="utf-8")
    with pytest.raises(PlaybookErrors, match="a mapping"):
        load_variables(file)
    file.write_text("", encoding="utf-8")
    assert load_variables(file).values == {}


def test_peek_takes_the_first_plays_variables(tmp_path: Path) -> None:
    file = tmp_path / "p.yml"
    file.write_text(
        "- hosts: a\n  vars: {root: '{{ x }}', a: 1}\n- hosts: b\n  vars: {root: z, b: 2}\n- nonsense\n",
        encoding="utf-8",
    )
    assert peek_variables(file) == {"root": "{{ x }}", "a": 1, "b": 2}
