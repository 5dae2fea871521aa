"""Whatever filters, tests, lookups and statements are put together, only typed errors come out, and soon."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossgrade.playbook.filters import FILTERS
from crossgrade.playbook.lookups import LOOKUPS
from crossgrade.playbook.markers import DependsOnUnknown, Unknown
from crossgrade.playbook.templating import Templar, TemplateError
from crossgrade.playbook.tests import TESTS
from crossgrade.playbook.variables import OMIT, Precedence, Scope

QUICK = settings(max_examples=250, deadline=20_000)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=15)
    | st.sampled_from(
        [
            "1.0",
            "a,b",
            "k",
            "{{ x }}",
            "{",
            "(",
            "\\1",
            "http://[",
            "/",
            "..",
            "a=1 file=x",
            "$ANSIBLE_VAULT;",
            "9" * 30,
        ]
    )
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4),
    max_leaves=10,
)
ARGUMENTS = st.sampled_from(
    [
        *("v", "w", "u", "n", "omit", "1", "-1", "0", "1.5", "none", "true", "'k'", "'a'", "''", "'('", "'%d'", "[1]"),
        *("[v]", "{'k': v}", "[u]", "[n]", "99999999", "'sha256'", "default=1", "seed=v", "attribute='k'", "errors=v"),
        *(
            "wantlist=true",
            "errors='ignore'",
            "case_sensitive=v",
            "start=w",
            "levels=w",
            "width=w",
            "indent=w",
            "re=true",
        ),
        *(
            "file='t.j2'",
            "section=v",
            "delimiter=v",
            "skip=true",
            "files=v",
            "paths=w",
            "length=w",
            "chars=v",
            "nope=1",
        ),
    ]
)
calls = st.lists(ARGUMENTS, max_size=3).map(lambda several: ", ".join(sorted(several, key=lambda one: "=" in one)))
PIECES = st.sampled_from(
    [
        *(
            "{{ v }}",
            "{{ u }}",
            "{{ n }}",
            "{{ omit }}",
            "a",
            "\n",
            "{% if v %}",
            "{% if u %}",
            "{% endif %}",
            "{% else %}",
        ),
        *(
            "{% for i in v %}",
            "{% for i in range(3) %}",
            "{{ i }}",
            "{{ loop.index }}",
            "{% endfor %}",
            "{% set v = w %}",
        ),
        *("{% set x = [v] %}", "{{ x }}", "{% macro m(a) %}", "{% endmacro %}", "{{ m(v) }}", "{{ m }}", "{% raw %}"),
        *(
            "{% endraw %}",
            "{% include 't.j2' %}",
            "{% import 't.j2' as t %}",
            "{{ t }}",
            "{% extends 't.j2' %}",
            "{{ self }}",
        ),
        *(
            "{% block b %}",
            "{% endblock %}",
            "{{ super() }}",
            "{% filter upper %}",
            "{% endfilter %}",
            "{% call m(1) %}",
        ),
        *(
            "{% endcall %}",
            "{{ caller() }}",
            "{% with a = v %}",
            "{% endwith %}",
            "{# ",
            " #}",
            "{{",
            "}}",
            "{%",
            "%}",
            "{{ a }}",
        ),
        *("{% break %}", "{% do v %}", "{{ namespace(a=v) }}", "{{ cycler(v) }}", "{{ joiner() }}", "{{ dict(v) }}"),
    ]
)


@pytest.fixture(scope="module", autouse=True)
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp())
    (made / "t.j2").write_text(
        "{% macro f(x) %}{{ x }}{% endmacro %}{% block b %}{{ v }}{% endblock %}", encoding="utf-8"
    )
    _FOLDER.append(made)
    yield made
    shutil.rmtree(made)


_FOLDER: list[Path] = []


def templar(v: Any, w: Any) -> Templar:
    data = {"v": v, "w": w, "u": Unknown("a task", certain=False)}
    scope = Scope().with_layer(Precedence.SET_FACTS, data, templated=False)
    scope = scope.with_layer(Precedence.PLAY_VARS, {"lazy": ["{{ v }}", {"k": "{{ w }}"}]})
    return Templar(scope, directory=_FOLDER[-1], environment={}, time_limit=2)


def only_typed_errors() -> AbstractContextManager[None]:
    return suppress(TemplateError, DependsOnUnknown)


def is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return type(value) is dict and all(is_plain(key) and is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return type(value) is list and all(is_plain(item) for item in value)
    return value is OMIT or type(value).__name__ in (
        "str",
        "int",
        "float",
        "bool",
        "NoneType",
        "datetime",
        "date",
    )


def expand(template: str, v: Any, w: Any) -> None:
    with only_typed_errors():
        assert is_plain(templar(v, w).template(template)), template


@QUICK
@given(values, values, st.sampled_from(["v", "w", "lazy", "u", "n", "[u]"]), st.sampled_from(sorted(FILTERS)), calls)
def test_any_filter_with_any_arguments(v: Any, w: Any, first: str, name: str, arguments: str) -> None:
    expand(f"{{{{ {first} | {name}({arguments}) }}}}", v, w)


@QUICK
@given(values, values, st.sampled_from(["v", "w", "lazy", "u", "n", "[u]"]), st.sampled_from(sorted(TESTS)), calls)
def test_any_test_with_any_arguments(v: Any, w: Any, first: str, name: str, arguments: str) -> None:
    with only_typed_errors():
        assert isinstance(templar(v, w).evaluate_condition(f"{first} is {name}({arguments})"), bool)


@QUICK
@given(values, values, st.sampled_from(sorted(LOOKUPS)), calls)
def test_any_lookup_with_any_arguments(v: Any, w: Any, name: str, arguments: str) -> None:
    expand(f"{{{{ lookup('{name}'{', ' if arguments else ''}{arguments}) }}}}", v, w)


@QUICK
@given(values, values, st.lists(PIECES, max_size=9).map("".join))
def test_any_statements(v: Any, w: Any, template: str) -> None:
    expand(template, v, w)
    with only_typed_errors():
        assert isinstance(templar(v, w).render_text(template, "a template"), str)


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_a_filter_on_an_unknown_value_gives_an_unknown_one(name: str) -> None:
    made = templar(1, 2)
    assert made.template(f"{{{{ [u | {name}, 5] | last }}}}") == 5
    with pytest.raises(DependsOnUnknown):
        made.template(f"{{{{ u | {name} }}}}")
