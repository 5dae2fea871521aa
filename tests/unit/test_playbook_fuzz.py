"""Whatever comes in, only errors with a type come out, and soon."""

from __future__ import annotations

import string
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.playbooks import MODULES, playbook_of

from crossgrade.errors import CrossgradeError
from crossgrade.playbook.arguments import parse_arguments
from crossgrade.playbook.extra_vars import parse_extra_vars
from crossgrade.playbook.freeform import UnbalancedError, split_pairs
from crossgrade.playbook.inventory import load_inventory
from crossgrade.playbook.schema import KEYWORDS
from crossgrade.playbook.templating import Templar
from crossgrade.playbook.variables import OMIT, Precedence, Scope, Unknown
from crossgrade.playbook.yamltext import parse_yaml

QUICK = settings(max_examples=150, deadline=10_000)

YAML_PIECES = st.sampled_from(
    [
        "a",
        "b: ",
        "- ",
        "\n",
        "  ",
        "\t",
        "{",
        "}",
        "[",
        "]",
        "'",
        '"',
        ":",
        ",",
        "&x ",
        "*x",
        "!",
        "!!int ",
        "|",
        ">",
        "#",
        "{{",
        "}}",
        "---",
        "...",
        "<<: ",
        "? ",
        "1",
        "yes",
        "~",
        "0x",
        "1_0",
        "2020-01-01",
        "\\",
        "é",
        "\u2028",
        "\x00",
        "hosts: ",
        "tasks:\n",
        "command: ",
        "when: ",
    ]
)
EXPRESSION_PIECES = st.sampled_from(
    [
        "a",
        "b",
        "d",
        "u",
        "l",
        "1",
        "2.5",
        "'x'",
        "none",
        "true",
        "[",
        "]",
        "{",
        "}",
        "(",
        ")",
        ",",
        ":",
        ".",
        "|",
        "~",
        " + ",
        " * ",
        " ** ",
        " % ",
        " / ",
        " - ",
        " == ",
        " < ",
        " in ",
        " is ",
        " not ",
        " and ",
        " or ",
        " if ",
        " else ",
        "default",
        "length",
        "int",
        "list",
        "map",
        "join",
        "to_json",
        "combine",
        "flatten",
        "defined",
        "changed",
        "match",
        "regex_replace",
        "sort",
        "version",
        "items",
        "loop",
        "range",
        "lookup",
        "'env'",
        "omit",
        "__class__",
        "format",
    ]
)

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=4),
    max_leaves=15,
)
keywords = st.sampled_from(sorted({name for place in KEYWORDS.values() for name in place} | set(MODULES) | {"nope"}))
tasks = st.recursive(
    st.dictionaries(keywords, values, max_size=5),
    lambda inner: st.fixed_dictionaries({"block": st.lists(inner, max_size=3), "rescue": st.lists(inner, max_size=2)}),
    max_leaves=6,
)


@contextmanager
def only_typed_errors() -> Iterator[None]:
    """What the body raises has a type of ours, and a message that a terminal can show."""
    try:
        yield
    except CrossgradeError as error:
        text = str(error)
        assert text
        assert all(letter.isprintable() or letter == "\n" for letter in text)


@QUICK
@given(st.text(max_size=300) | st.lists(YAML_PIECES, max_size=60).map("".join))
def test_any_text(text: str) -> None:
    with only_typed_errors():
        playbook_of(text)


@QUICK
@given(st.lists(st.fixed_dictionaries({"hosts": values, "tasks": st.lists(tasks, max_size=4)}) | values, max_size=3))
def test_any_structure(plays: list[Any]) -> None:
    with only_typed_errors():
        playbook_of(yaml.safe_dump(plays, allow_unicode=True))


@QUICK
@given(values)
def test_what_yaml_writes_is_read_back(value: Any) -> None:
    text = yaml.safe_dump(value, allow_unicode=True)
    assert parse_yaml(text, "x.yml").root.value == yaml.safe_load(text)


@QUICK
@given(
    st.sampled_from(sorted(MODULES)),
    st.dictionaries(st.sampled_from(["cmd", "argv", "dest", "force", "retries"]), values),
)
def test_any_arguments(module: str, raw: dict[str, Any]) -> None:
    with only_typed_errors():
        parse_arguments(MODULES[module], raw)


VARIABLES: dict[str, Any] = {"a": 1, "b": "{{ a }}x", "d": {"k": "{{ a }}", "m": "{{ nope }}"}, "l": [1, "{{ b }}"]}
SCOPE = (
    Scope()
    .with_layer(Precedence.PLAY_VARS, VARIABLES)
    .with_layer(Precedence.SET_FACTS, {"u": Unknown("the result of x", {"changed": True})}, templated=False)
)


def is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return type(value) is dict and all(is_plain(key) and is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return type(value) is list and all(is_plain(item) for item in value)
    return value is OMIT or type(value) in (str, int, float, bool, type(None))


@QUICK
@given(st.lists(EXPRESSION_PIECES, max_size=12).map("".join) | st.text(string.printable, max_size=40))
def test_any_expression(expression: str) -> None:
    templar = Templar(SCOPE, environment={}, time_limit=2)
    for template in (f"{{{{ {expression} }}}}", f"x{{{{ {expression} }}}}{{% if {expression} %}}y{{% endif %}}"):
        with only_typed_errors():
            assert is_plain(templar.template(template))
    with only_typed_errors():
        assert isinstance(templar.evaluate_condition(expression), bool)


FILTERS = st.sampled_from(
    [
        "abs",
        "b64decode",
        "b64encode",
        "basename",
        "bool",
        "batch(2)",
        "capitalize",
        "center",
        "combine",
        "count",
        "default('x')",
        "dict2items",
        "dictsort",
        "difference([1])",
        "dirname",
        "escape",
        "expanduser",
        "first",
        "flatten",
        "float",
        "format",
        "from_json",
        "from_yaml",
        "groupby('k')",
        "hash",
        "indent",
        "int",
        "intersect([1])",
        "items",
        "items2dict",
        "join",
        "last",
        "length",
        "list",
        "log",
        "lower",
        "map('int')",
        "max",
        "min",
        "product([1])",
        "quote",
        "random",
        "realpath",
        "regex_escape",
        "regex_findall('.')",
        "regex_replace('a','b')",
        "regex_search('(.)','\\1')",
        "reject",
        "replace('a','b')",
        "reverse",
        "round",
        "select",
        "selectattr('k')",
        "slice(2)",
        "sort",
        "split",
        "splitext",
        "string",
        "sum",
        "symmetric_difference([1])",
        "ternary(1,2)",
        "title",
        "to_json",
        "to_nice_json",
        "to_nice_yaml",
        "to_yaml",
        "trim",
        "truncate",
        "type_debug",
        "union([1])",
        "unique",
        "upper",
        "urlencode",
        "version('1.0')",
        "wordcount",
        "wordwrap",
        "xmlattr",
        "zip([1])",
    ]
)


@QUICK
@given(values, st.lists(FILTERS, min_size=1, max_size=3))
def test_any_filter_on_any_value(value: Any, filters: list[str]) -> None:
    scope = Scope().with_layer(Precedence.SET_FACTS, {"value": value}, templated=False)
    with only_typed_errors():
        assert is_plain(Templar(scope, time_limit=2).template("{{ " + " | ".join(["value", *filters]) + " }}"))


@QUICK
@given(st.text(max_size=60) | st.text("ab= '\"{}%\\", max_size=40))
def test_short_forms_and_extra_vars(text: str) -> None:
    with suppress(UnbalancedError):
        pairs, rest = split_pairs(text)
        assert all(name.isidentifier() and isinstance(value, str) for name, value in pairs.items())
        assert all(letter in text for letter in rest)
    with only_typed_errors():
        parse_extra_vars([text.lstrip("@")])


@QUICK
@given(
    st.lists(
        st.sampled_from(
            ["x", "[a]", "[a:vars]", "[a:children]", "\n", "=", "1", "[1:3]", " ", "'", "#", ":22", "[", "]"]
        )
    ).map("".join)
)
def test_any_ini_inventory(text: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "hosts"
        file.write_text(text, encoding="utf-8")
        with only_typed_errors():
            load_inventory([str(file)]).select("all")


@pytest.mark.parametrize("name", ["lookup", "query", "now", "undef", "range", "dict", "namespace", "cycler", "joiner"])
@pytest.mark.parametrize("arguments", ["", "1", "'x'", "none", "[]", "a=1", "u", "l, d"])
def test_any_call(name: str, arguments: str) -> None:
    with only_typed_errors():
        Templar(SCOPE, environment={}, time_limit=2).template("{{ " + f"{name}({arguments})" + " }}")
