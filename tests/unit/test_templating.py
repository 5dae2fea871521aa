"""Templates and conditions: laziness, omit, unknown values, limits, errors.

Whether results are those of Ansible is tested in `tests/conformance`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.playbooks import playbook_of

from crossgrade.errors import ExitCode
from crossgrade.playbook.check import check_templates
from crossgrade.playbook.positions import Spot
from crossgrade.playbook.templating import (
    ConditionError,
    DependsOnUnknown,
    Templar,
    TemplateError,
    TemplateLimitError,
    UndefinedVariableError,
)
from crossgrade.playbook.variables import OMIT, Precedence, Scope, ScopeTable, Unknown
from crossgrade.playbook.yamltext import parse_yaml


def templar(variables: dict[str, Any] | None = None, data: dict[str, Any] | None = None, **options: Any) -> Templar:
    scope = Scope().with_layer(Precedence.PLAY_VARS, variables or {})
    return Templar(scope.with_layer(Precedence.SET_FACTS, data or {}, templated=False), **options)


def test_a_value_without_a_template_comes_back_as_it_is() -> None:
    for value in (1, None, True, "text", ["a", {"b": 2.5}], {"k": "}} {"}):
        assert templar().template(value) == value


def test_jinja_is_not_imported_without_a_template() -> None:
    program = (
        "import sys\n"
        "from crossgrade.playbook.templating import Templar\n"
        "from crossgrade.playbook.variables import Scope\n"
        "Templar(Scope()).template({'a': ['x', 1]}); Templar(Scope()).evaluate_condition(True)\n"
        "print('jinja2' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_data_is_never_expanded() -> None:
    made = templar(
        {"direct": "{{ secret }}"}, {"stdout": "{{ secret }}", "result": {"lines": ["{{ secret }}"]}, "secret": 1}
    )
    assert made.template("{{ stdout }}") == "{{ secret }}"
    assert made.template("{{ result.lines[0] }}!") == "{{ secret }}!"
    assert made.template("{{ direct }}") == 1


def test_unsafe_text_is_never_expanded() -> None:
    variables = parse_yaml("a: !unsafe '{{ nope }}'\nb: '{{ a }}'\nc: [!unsafe '{{ nope }}']\n", "v.yml").root.value
    made = templar(variables)
    assert made.template("{{ a }}") == "{{ nope }}"
    assert made.template("{{ b }}{{ c[0] }}") == "{{ nope }}{{ nope }}"
    assert made.template(variables["a"]) == "{{ nope }}"


def test_variables_are_expanded_when_asked_for_and_once() -> None:
    variables = {
        "good": "{{ number + 1 }}",
        "number": 1,
        "bad": "{{ nowhere }}",
        "mapping": {"a": "{{ good }}", "b": "{{ bad }}", "c": "{{ mapping.a * 10 }}"},
        "list": ["{{ good }}", "{{ bad }}", 3],
    }
    made = templar(variables)
    assert made.template("{{ mapping.a }}-{{ mapping.c }}-{{ list[0] }}-{{ list[-1] }}") == "2-20-2-3"
    assert made.template("{{ mapping | length }}{{ 'b' in mapping }}") == "3True"
    assert made.template("{{ list | first }}{{ mapping.keys() | sort | join }}") == "2abc"
    assert made.template("{{ mapping.b | default('none') }}") == "none"
    with pytest.raises(UndefinedVariableError, match='"nowhere" is not defined'):
        made.template("{{ mapping }}")


def test_lazy_containers_behave_like_plain_ones() -> None:
    made = templar({"d": {"a": "{{ 1 }}", "n": {"x": "{{ 2 }}"}}, "l": ["{{ 3 }}", [4, "{{ 5 }}"]]})
    expected = {
        "{{ d == {'a': 1, 'n': {'x': 2}} }}": True,
        "{{ l == [3, [4, 5]] }}": True,
        "{{ l + [6] }}": [3, [4, 5], 6],
        "{{ [6] + l }}": [6, 3, [4, 5]],
        "{{ l * 2 }}": [3, [4, 5], 3, [4, 5]],
        "{{ l[0:1] }}": [3],
        "{{ l | reverse | list }}": [[4, 5], 3],
        "{{ 3 in l }}": True,
        "{{ l.index(3) }}": 0,
        "{{ l | flatten | sum }}": 12,
        "{{ d | dict2items | map(attribute='key') | list }}": ["a", "n"],
        "{{ d | combine({'a': 9}) }}": {"a": 9, "n": {"x": 2}},
        "{{ d.items() | list }}": [["a", 1], ["n", {"x": 2}]],
        "{{ d.values() | list }}": [1, {"x": 2}],
        "{{ dict(d, z=1) }}": {"a": 1, "n": {"x": 2}, "z": 1},
        "{{ d | to_json }}": '{"a": 1, "n": {"x": 2}}',
        "{{ l | to_json }}": "[3, [4, 5]]",
        "{{ d | string }}": "{'a': 1, 'n': {'x': 2}}",
        "{{ d.get('nope', 7) }}": 7,
        "{% for k, v in d.items() %}{{ k }}{{ v }} {% endfor %}": "a1 n{'x': 2} ",
    }
    for template, value in expected.items():
        assert made.template(template) == value, template


@pytest.mark.parametrize(
    "variables",
    [
        {"a": "{{ a }}"},
        {"a": "{{ b }}", "b": "{{ c }}", "c": "x{{ a }}"},
        {"a": {"x": "{{ a.x }}"}},
        {"a": ["{{ a[0] }}"]},
        {f"v{at}": f"{{{{ v{at + 1} }}}}" for at in range(500)} | {"a": "{{ v0 }}"},
    ],
)
def test_circles_end_with_an_error(variables: dict[str, Any]) -> None:
    with pytest.raises(TemplateError):
        templar(variables).template("{{ a }}")
    with pytest.raises(TemplateError):
        templar(variables).template("{{ a | string }}")


def test_the_circle_is_named() -> None:
    with pytest.raises(TemplateError, match="a → b → a"):
        templar({"a": "{{ b }}", "b": "{{ a }}"}).template("{{ a }}")


def test_omit() -> None:
    made = templar({"leave_out": "{{ omit }}"})
    assert made.template("{{ omit }}") is OMIT
    assert made.template({"a": "{{ leave_out }}", "b": ["{{ omit }}", 1], "c": {"d": "{{ x | default(omit) }}"}}) == {
        "b": [1],
        "c": {},
    }
    assert made.template(["a{{ omit }}"]) == ["a"]
    with pytest.raises(TemplateError, match="omit"):
        made.template("{{ 'a' ~ omit }}")


def test_keys_that_are_kept_raw() -> None:
    assert templar({"x": 1}).template({"that": ["{{ x }}"], "msg": "{{ x }}"}, keep={"that"}) == {
        "that": ["{{ x }}"],
        "msg": 1,
    }


RESULT = Unknown('the result of "build"', {"changed": True, "failed": False, "skipped": False})


@pytest.mark.parametrize(
    "template",
    [
        "{{ r }}",
        "{{ r.rc }}",
        "{{ r.stdout | length }}",
        "{{ r['rc'] + 1 }}",
        "{{ 1 + r.rc }}",
        "{{ [r.rc] }}",
        "{{ {'a': r.rc} }}",
        "x{{ r.stdout }}",
        "{{ r.rc is defined }}",
        "{{ r.stdout | default('x') }}",
        "{{ r.results | map(attribute='rc') | list }}",
        "{{ 'a' in r.stdout }}",
        "{{ r.rc in [1] }}",
        "{{ r.rc == 0 or true }}",
        "{{ 1 if r.rc else 2 }}",
        "{% for x in r.results %}{% endfor %}",
        "{{ r.stdout.split() }}",
        "{{ '%s' | format(r.rc) }}",
        "{{ r.rc is string }}",
        "{{ lookup('env', r.stdout) }}",
        "{{ r.stdout ~ 'x' }}",
        "{{ indirect }}",
        "{{ inside.a }}",
        "{{ inside }}",
        "{{ range(r.rc) }}",
        "{{ -r.rc }}",
        "{{ r.x.y.z }}",
        "{{ ok[r.rc] }}",
    ],
)
def test_what_depends_on_an_unknown_value_says_so(template: str) -> None:
    made = templar({"indirect": "{{ r.rc }}", "inside": {"a": "{{ r.rc }}"}, "ok": [1]}, {"r": RESULT})
    with pytest.raises(DependsOnUnknown) as caught:
        made.template(template)
    assert caught.value.origin == 'the result of "build"'
    assert caught.value.expression == template


def test_what_is_known_of_an_unknown_value() -> None:
    made = templar({"inside": {"a": "{{ r.rc }}", "b": 2}}, {"r": RESULT})
    assert made.template("{{ r is changed }}{{ r is failed }}{{ r is skipped }}{{ r is defined }}{{ r.changed }}") == (
        "TrueFalseFalseTrueTrue"
    )
    assert made.template("{{ inside.b }}") == 2
    assert made.evaluate_condition("r is not failed and r is changed")
    assert not made.evaluate_condition("r is failed and r.rc == 0")
    with pytest.raises(DependsOnUnknown):
        made.evaluate_condition("r.rc == 0")
    with pytest.raises(DependsOnUnknown):
        templar(data={"list": [1, Unknown("x")]}).template("{{ list }}")
    assert templar(data={"list": [1, Unknown("x")]}).template("{{ list[0] }}") == 1


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * 'a' }}",
        "{{ [1] * 1000000000 }}",
        "{{ (10 ** 10000) ** 10000 }}",
        "{{ 10 ** 1000000000 }}",
        "{{ range(1000000000) | list }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:1000000000d}'.format(1) }}",
        "{{ '{:{w}}'.format(1, w=1000000000) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a'.zfill(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a\\nb' | indent(1000000000) }}",
        "{{ ('a' * 9000000).replace('a', 'aaaa') }}",
        "{{ ('a' * 9000000) | replace('a', 'aaaa') }}",
        "{{ ('a' * 1000000) | regex_replace('a', 'b' * 1000) }}",
        "{{ ('a' * 100000).join(range(100000) | map('string') | list) }}",
        "{{ range(100000) | product(range(100000)) | list }}",
        "{% set n = namespace(x='a') %}{% for i in range(100) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(100) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(100) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% for i in range(1000000) %}{% for j in range(1000000) %}{% endfor %}{% endfor %}",
        "{{ ('a' * 40 ~ '!') | regex_search('(a+)+$') }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ " + "[" * 500 + "]" * 500 + " }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + " + ".join("1" * 3000) + " }}",
        "{% for i in range(1000000) %}aaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}",
    ],
)
def test_bombs_end_quickly_with_a_limit_error(template: str) -> None:
    made = templar(time_limit=0.5)
    with pytest.raises(TemplateLimitError):
        made.template(template)
    assert made.template("{{ 1 + 1 }}") == 2


def test_another_thread_works_too() -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(templar({"x": 1}).template("{{ x }}")))
    thread.start()
    thread.join()
    assert found == [1]


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ [].append(1) }}",
        "{{ values.append(1) }}",
        "{{ lazy.update({}) }}",
        "{{ ().__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ lookup.__globals__ }}",
        "{{ self.__init__ }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '%s' | attr('__class__') }}",
        "{{ ('x' | attr('format')).__self__ }}",
        "{{ templar }}",
        "{% include '/etc/passwd' %}",
        "{% import 'x' as y %}",
        "{{ [1] | map(attribute='__class__') | list }}",
        "{{ dict.__base__ }}",
        "{{ range.__self__ }}",
        "{{ namespace.__init__ }}",
    ],
)
def test_the_sandbox_holds(template: str) -> None:
    with pytest.raises(TemplateError):
        templar({"lazy": {"a": "{{ 1 }}"}}, {"values": [1]}).template(template)


@pytest.mark.parametrize(
    ("template", "kind", "message", "remedy"),
    [
        (
            "{{ nmuber }}",
            UndefinedVariableError,
            '"nmuber" is not defined, in "{{ nmuber }}"',
            'Did you mean "number"?',
        ),
        ("{{ mapping.nope }}", UndefinedVariableError, 'there is no "nope" in a mapping with a', ""),
        ("{{ mapping.nope.deeper }}", UndefinedVariableError, 'there is no "nope"', ""),
        ("{{ words[9] }}", UndefinedVariableError, "there is no item 9 in a list", ""),
        ("{{ outer }}", UndefinedVariableError, '(needed for "outer")', ""),
        ("{{ number.foo }}", UndefinedVariableError, 'there is no "foo" in a number', ""),
        ("{{ number | nope }}", TemplateError, "there is no filter `nope`", ""),
        ("{{ number", TemplateError, "opened and never closed", "Add the `}}`"),
        ("{{ number }", TemplateError, "closed by a single `}`", "Write `}}`"),
        ("{{ words | map('to_jsn') | list }}", TemplateError, "there is no filter `to_jsn`", 'Did you mean "to_json"?'),
        ("{{ number is definde }}", TemplateError, "there is no test `definde`", 'Did you mean "defined"?'),
        (
            "{{ 1 | community.general.x }}",
            TemplateError,
            "no filter `community.general.x`",
            "of ansible-core and of Jinja",
        ),
        ("{{ 1 / 0 }}", TemplateError, "ZeroDivisionError", ""),
        ("{{ lookup('config', 'x') }}", TemplateError, "lookup `config` is not supported", "lookup('ini'"),
        ("{{ 'x' | password_hash }}", TemplateError, "filter `password_hash` is not supported", "openssl passwd"),
        ("{{ 'x' | win_basename }}", TemplateError, "`win_basename` is not supported", "without `win_`"),
        ("{{ lookup('file', '/nope') }}", TemplateError, "/nope is not there", ""),
        ("{{ 'maybe' | bool }}", TemplateError, "expected true or false", ""),
        ("{{ 'x' | from_yaml | from_json }}", TemplateError, "not JSON", ""),
        ("{{ 'a: [' | from_yaml }}", TemplateError, "not YAML", ""),
        ("{{ words | combine }}", TemplateError, "expected mappings", ""),
        ("{{ undef('give me a name') }}", UndefinedVariableError, "give me a name", ""),
        ("{{ x | mandatory('the port is needed') }}", TemplateError, "the port is needed", ""),
        ("{{ words.index }}", TemplateError, "is the function", ""),
        ("{{ words.sort }}", TemplateError, "not allowed in a template", ""),
    ],
)
def test_errors_say_what_is_wrong(template: str, kind: type[TemplateError], message: str, remedy: str) -> None:
    made = templar({"number": 1, "mapping": {"a": 1}, "words": ["x"], "outer": "{{ gone }}"})
    with pytest.raises(kind) as caught:
        made.template(template)
    assert message in caught.value.message
    assert remedy in caught.value.remedy
    assert caught.value.expression == template
    assert caught.value.exit_code == ExitCode.FAILED


def test_errors_have_the_place_of_the_value_and_of_the_variable() -> None:
    source = parse_yaml("vars:\n  outer: {a: '{{ gone }}'}\ntask:\n  - x\n  - msg: '{{ outer.a }}'\n", "p.yml")
    spot = Spot(source)
    scope = Scope().with_layer(Precedence.PLAY_VARS, source.root.value["vars"], spot=spot.at("vars"))
    with pytest.raises(UndefinedVariableError) as caught:
        Templar(scope).template(source.root.value["task"], spot.at("task"))
    assert str(caught.value.place) == "p.yml:5:10"
    assert '"gone" is not defined (needed for "outer" at p.yml:2:14)' in caught.value.message


def test_conditions() -> None:
    made = templar({"number": 3, "expression": "number == 3", "circle": "{{ circle }}"})
    assert made.evaluate_condition("number == 3")
    assert made.evaluate_condition("{{ expression }}")
    assert made.all_hold([True, "number > 1", "number < 9"])
    assert not made.all_hold(["number > 5", "nope.nope == 1"])
    assert made.all_hold([])
    for wrong in ("number", "'yes'", "", "number == '{{ number }}'", "{{ number }}", "expression"):
        with pytest.raises(ConditionError) as caught:
            made.evaluate_condition(wrong)
        assert caught.value.remedy or not wrong
    for wrong in ("number ==", "nope == 1", "circle == 1", "number is nope"):
        with pytest.raises(TemplateError):
            made.evaluate_condition(wrong)


def test_a_variable_that_holds_data_is_no_expression() -> None:
    with pytest.raises(ConditionError):
        templar(data={"stdout": "1 == 1"}).evaluate_condition("{{ stdout }}")


def test_the_place_of_one_condition_of_several() -> None:
    spot = Spot(parse_yaml("when:\n  - true\n  - nope\n", "p.yml")).at("when")
    with pytest.raises(UndefinedVariableError) as caught:
        templar().all_hold([True, "nope"], spot)
    assert str(caught.value.place) == "p.yml:3:5"


def test_booleans_of_keywords() -> None:
    made = templar({"on": "yes", "text": "perhaps"})
    assert made.boolean(None, default=True)
    assert made.boolean("{{ on }}")
    assert not made.boolean("{{ not true }}")
    assert made.boolean("{{ omit }}", default=True)
    with pytest.raises(TemplateError, match="true or false"):
        made.boolean("{{ text }}")


def test_template_files() -> None:
    made = templar({"name": "x", "items": [1, 2]})
    text = "# {{ name }}\n{% for i in items %}\nn={{ i }}\n{% endfor %}\n{{ 'a\\nb' }}\nlast {{ none }}\n\n"
    assert made.render_text(text, "f.j2") == "# x\nn=1\nn=2\na\nb\nlast \n\n"
    assert made.render_text("{{ items }}", "f.j2") == "[1, 2]"
    assert made.render_text("", "f.j2") == ""
    with pytest.raises(UndefinedVariableError, match=r"in the template f\.j2"):
        made.render_text("\n\n{{ nope }}", "f.j2")
    with pytest.raises(TemplateError, match="its line 3"):
        made.render_text("\n\n{{ nope", "f.j2")


def test_lookups_use_the_given_directory_and_environment(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("from files\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("beside\n", encoding="utf-8")
    made = templar(directory=tmp_path, environment={"ONLY": "here"})
    assert made.template("{{ lookup('file', 'a.txt') }} {{ lookup('file', 'b.txt') }}") == "from files beside"
    assert made.template("{{ lookup('env', 'ONLY') }}{{ lookup('env', 'HOME') }}") == "here"
    (tmp_path / "b.txt").write_bytes(b"\xff")
    with pytest.raises(TemplateError, match="lookup `file`"):
        made.template("{{ lookup('file', 'b.txt') }}")


class Table(dict[str, Scope], ScopeTable):
    """Scopes by the names of hosts."""


def test_scopes_as_values_are_expanded_with_their_own_variables() -> None:
    one = Scope().with_layer(Precedence.HOST_VARS, {"port": "{{ base + 1 }}", "base": 8000})
    made = templar(data={"hostvars": Table({"gpu1": one}), "base": 1})
    assert made.template("{{ hostvars.gpu1.port }}") == 8001
    assert made.template("{{ hostvars['gpu1'] | length }}") == 2


def test_syntax_of_a_playbook_is_checked_without_running() -> None:
    playbook = playbook_of(
        """
- hosts: localhost
  vars: {a: "{{ b | }}"}
  tasks:
    - command: {cmd: "echo {{ x"}
      when: [x ==, "y == 1"]
      loop: "{{ [1 }}"
    - block:
        - copy: {dest: "{{ fine }}", content: ["{% if %}"]}
      vars: {c: "{{ 1 + }}"}
      when: "{{ also fine }}"
""".replace('content: ["{% if %}"]', 'content: "{% if %}"')
    )
    found = [(problem.place.line, problem.place.column) for problem in check_templates(playbook) if problem.place]
    assert found == [(3, 13), (5, 22), (6, 14), (7, 13), (9, 47), (10, 17)]
