"""`schema` and `doc`: what they say is what the loader does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from crossgrade.cli import main
from crossgrade.commands.documentation import language_page
from crossgrade.commands.language import KINDS, words
from crossgrade.commands.schema_output import schema_of
from crossgrade.modules import NAMES, arguments_of, load_module
from crossgrade.modules.guide import guide_of
from crossgrade.playbook import keyword_docs
from crossgrade.playbook.check import check_templates
from crossgrade.playbook.loader import ModuleCatalogue, load_playbook
from crossgrade.playbook.positions import PlaybookErrors
from crossgrade.playbook.schema import KEYWORDS, MODULES_LATER

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE = ModuleCatalogue(NAMES, arguments_of)
CASES = ROOT.parent / "shared/cases/playbooks"  # where there are any
PLAYBOOKS = [
    *sorted(path for path in (ROOT / "playbooks").rglob("*.yml") if "inventory" not in path.name),
    *sorted(CASES.glob("*.yml")),
]
VALIDATORS = {kind: jsonschema.Draft7Validator(schema_of(kind)) for kind in ("playbook", "tasks", "vars", "inventory")}


@dataclass(frozen=True)
class Said:
    code: int
    stdout: str
    stderr: str


@pytest.fixture
def crossgrade(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """The command, in this process."""

    def run(*words: str) -> Said:
        try:
            main(["crossgrade", *words])
            code = 0
        except SystemExit as ending:
            code = int(ending.code or 0)
        return Said(code, *capsys.readouterr())

    return run


def errors_of(text: str, kind: str = "playbook") -> list[str]:
    return [f"{error.json_path} {error.message}" for error in VALIDATORS[kind].iter_errors(yaml.safe_load(text))]


def loader_refuses(text: str, folder: Path) -> bool:
    (folder / "p.yml").write_text(text)
    try:
        load_playbook(folder / "p.yml", CATALOGUE)
    except PlaybookErrors:
        return True
    return False


@pytest.mark.parametrize("kind", VALIDATORS)
def test_the_schemas_are_draft_7(kind: str) -> None:
    jsonschema.Draft7Validator.check_schema(schema_of(kind))
    assert schema_of(kind)["$schema"] == "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize("path", PLAYBOOKS, ids=[path.name for path in PLAYBOOKS])
def test_shipped_playbooks_are_valid(path: Path) -> None:
    assert errors_of(path.read_text()) == []


def test_the_shipped_inventory_is_valid() -> None:
    assert errors_of((ROOT / "playbooks/inventory.example.yml").read_text(), "inventory") == []


TASK = "- hosts: localhost\n  tasks:\n    "
RIGHT = [
    "- command: echo x",
    "- command: {argv: [echo, 1], chdir: '{{ x }}'}\n      args: {creates: y}",
    "- command: echo x\n      args: {chdir: /tmp}",
    "- ansible.builtin.copy: {src: a, dest: b, force: 'yes', mode: '0644'}",
    "- copy: src=a dest=b",
    "- copy:\n      args: {src: a, dest: b}",
    "- stat: {path: '{{ p }}', follow: '{{ f }}'}",
    "- command: x\n      when: [a, b is defined]\n      loop: '{{ l }}'\n      retries: '3'\n      until: c",
    "- command: x\n      tags: a,b",
    "- command: x\n      ignore_errors: 'yes'\n      notify: h\n      environment: ['{{ e }}', {A: 1}]",
    "- block: [{command: a}]\n      rescue: [{fail: {msg: x}}]\n      always: [{debug: {var: y}}]\n      when: z",
    "- set_fact: {a: 1, b: [2], cacheable: true}",
    "- wait_for: {port: '80', timeout: 1.5}",
    "- wait_for:",
    "- wait_for: {port: 80, msg: }",
    "- assert: {that: [a, b]}",
    "- python_env: {requirements: 'a==1,b==2', wheels: '{{ w }}', environment: {A: b}}",
    "- action: copy src=a dest=b\n      become: 'yes'",
    "- local_action: {module: command, cmd: x}",
    "- include_tasks: more.yml\n      loop: [1]",
    "- ansible.builtin.include_role: {name: r, apply: {tags: x}}",
    "- meta: flush_handlers",
    "- command: x\n      become_method: '{{ m }}'\n      connection:",
    "- ansible.builtin.systemd: {name: a, state: started}",
    "- gather_facts: {gather_subset: min}",
    "- command: x\n      with_items: '{{ l }}'\n      module_defaults: [{command: {chdir: /}}]",
]
WRONG = [
    ("- copi: {dest: a}", "copi"),
    ("- systemd: {nam: a}", "'nam' was unexpected"),
    ("- include_tasks: {fil: a}", "'fil' was unexpected"),
    ("- copy: {dset: a, src: b}", "'dset' was unexpected"),
    ("- copy: {src: a}", "'dest' is a required property"),
    ("- copy: {dest: a, src: b, force: maybe}", "maybe"),
    ("- command: a\n      copy: {src: a, dest: b}", "valid under each of"),
    ("- command: a\n      wehn: b", "wehn"),
    ("- command: a\n      hosts: b", "hosts"),
    ("- name: nothing", "not valid under any"),
    ("- just text", "not of type 'object'"),
    ("- command: a\n      when: {b: c}", "not valid under any"),
    ("- command: a\n      loop: words", "not valid under any"),
    ("- command: a\n      register: a-b", "a-b"),
    ("- command: a\n      retries: many", "many"),
    ("- command: a\n      loop: [1]\n      loop_control: {lable: x}", "lable"),
    ("- command: a\n      vars: {a b: 1}", "a b"),
    ("- command: a\n      environment: {A: [1]}", "not valid under any"),
    ("- block: {a: 1}", "not of type"),
    ("- rescue: [{command: a}]", "'block' is a required property"),
    ("- file: {path: a, state: presnt}", "presnt"),
    ("- wait_for: {port: many}", "many"),
    ("- stat: [a]", "not of type"),
    ("- stat:", "not of type"),
    ("- copy: just text", "just text"),
    ("- server: {command: [a], on_not_run: pass}", "pass"),
]


@pytest.mark.parametrize("task", RIGHT)
def test_what_the_loader_takes_the_schema_takes(task: str, tmp_path: Path) -> None:
    assert not loader_refuses(TASK + task, tmp_path)
    assert errors_of(TASK + task) == []


@pytest.mark.parametrize(("task", "message"), WRONG)
def test_what_is_wrong_both_refuse(task: str, message: str, tmp_path: Path) -> None:
    assert loader_refuses(TASK + task, tmp_path)
    found = errors_of(TASK + task)
    assert any(message in error for error in found), found


@pytest.mark.parametrize(
    "text",
    ["a: 1", "[]", "- 1", "- command: x", "- name: x", "- hosts: a\n  taks: []", "- hosts: a\n  tasks: {command: x}"],
)
def test_wrong_plays(text: str, tmp_path: Path) -> None:
    assert loader_refuses(text, tmp_path)
    assert errors_of(text) != []


def test_lists_of_tasks_and_files_of_variables() -> None:
    assert errors_of("- command: x\n- block: [{debug: }]", "tasks") == []
    assert errors_of("- hosts: a", "tasks") != []
    assert errors_of("a: {b: 1}", "vars") == []
    assert errors_of("a b: 1", "vars") != []
    assert errors_of("all: {hosts: {a: }, childen: {}}", "inventory") != []


def test_every_argument_and_keyword_is_described() -> None:
    schema = schema_of("playbook")
    for name, definition in schema["definitions"].items():
        for key, value in definition.get("properties", {}).items():
            assert "$ref" in value or value.get("description") or name == "loop_control", f"{name}: {key}"


def test_the_command_prints_what_an_editor_can_read(crossgrade: Callable[..., Said]) -> None:
    done = crossgrade("schema")
    assert json.loads(done.stdout) == schema_of("playbook")
    assert crossgrade("schema", "--kind", "nope").code == 5


# ---- doc


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_module_has_a_guide_whose_example_is_right(name: str, tmp_path: Path) -> None:
    module = load_module(name)
    guide = guide_of(module)
    assert guide.plan
    assert guide.diff
    assert guide.undo
    tasks = yaml.safe_load(guide.example)
    assert any(module.name in task for task in tasks), "src/crossgrade/modules/guides: an example of the module"
    play = [{"hosts": "localhost", "tasks": tasks}]
    text = yaml.safe_dump(play, sort_keys=False)
    (tmp_path / "p.yml").write_text(text)
    assert check_templates(load_playbook(tmp_path / "p.yml", CATALOGUE)) == []
    assert errors_of(text) == []


@pytest.mark.parametrize("name", sorted(NAMES))
def test_what_a_guide_says_is_returned_is_named_in_the_code(name: str) -> None:
    source = "".join(path.read_text() for path in (ROOT / "src/crossgrade/modules").glob("*.py"))
    for returned in guide_of(load_module(name)).returns:
        assert f'"{returned}"' in source or f"{returned}:" in source, returned


def test_guides_are_those_of_modules() -> None:
    there = {path.stem for path in (ROOT / "src/crossgrade/modules/guides").glob("*.yml")}
    assert there <= set(NAMES)


def test_doc_of_a_module_as_text_and_as_json(crossgrade: Callable[..., Said]) -> None:
    text = crossgrade("doc", "command").stdout
    assert all(part in text for part in ("Arguments", "Returns", "Check mode", "Undo", "Example", "cannot be undone"))
    (found,) = json.loads(crossgrade("doc", "ansible.builtin.copy", "--json").stdout)
    assert (found["name"], found["state"], found["effect"]) == ("copy", "different", "changes")
    assert {"dest", "src", "content"} <= {argument["name"] for argument in found["arguments"]}


def test_doc_of_another_name_of_a_module_and_of_a_statement(crossgrade: Callable[..., Said]) -> None:
    systemd, statement = json.loads(crossgrade("doc", "systemd", "ansible.builtin.include_role", "--json").stdout)
    assert "systemd_service:" in systemd["example"]
    assert {"name", "tasks_from", "apply"} <= {argument["name"] for argument in statement["arguments"]}
    assert "tasks_from" in crossgrade("doc", "include_role").stdout


@pytest.mark.parametrize(
    ("words_given", "expected"),
    [
        (("cop",), 'Did you mean "copy"?'),
        (("wehn", "-t", "keyword"), 'Did you mean "when"?'),
        (("when", "-t", "module"), "--list -t module"),
        (("x", "-t", "keywrd"), 'Did you mean "keyword"?'),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(
    words_given: tuple[str, ...], expected: str, crossgrade: Callable[..., Said]
) -> None:
    done = crossgrade("doc", *words_given)
    assert done.code == 5
    assert expected in done.stderr


def test_a_name_is_found_in_whichever_kind_has_it(crossgrade: Callable[..., Said]) -> None:
    text = crossgrade("doc", "when", "combine", "superset", "env").stdout
    assert [line for line in text.splitlines() if line.endswith("as in Ansible)")] == [
        "when  (keyword, as in Ansible)",
        "combine  (filter, as in Ansible)",
        "issuperset, superset  (test, as in Ansible)",
        "env  (lookup, as in Ansible)",
    ]


def test_the_list_has_every_module(crossgrade: Callable[..., Said]) -> None:
    lines = crossgrade("doc", "--list").stdout.splitlines()
    assert set(NAMES) <= {name.strip(",") for line in lines for name in line.split("  ")[0].split()}


# ---- the language page


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_says_what_it_is_for_and_absent_ones_what_to_use(kind: str) -> None:
    for word in words(kind):
        assert word.what, f"{kind} {word.name}: a row in knowledge/language.yml or keyword_docs.py"
        assert word.note or word.state != "absent" or kind == "keyword", word.name


def test_every_keyword_of_the_table_is_described() -> None:
    for keywords in KEYWORDS.values():
        assert [name for name in keywords if not keyword_docs.description(name)] == []
    assert set(keyword_docs.DIFFERENT) <= {name for keywords in KEYWORDS.values() for name in keywords}


def test_keywords_stand_where_ansible_lets_them_stand() -> None:
    argv = [str(Path(sys.executable).parent / "ansible-doc"), "-t", "keyword"]
    listed = json.loads(subprocess.run([*argv, "--list", "--json"], capture_output=True, text=True, check=True).stdout)
    told = subprocess.run([*argv, *listed, "--json"], capture_output=True, text=True, check=True).stdout
    theirs = {
        name: {place.lower() for place in keyword["applies_to"]}
        for name, keyword in json.loads(told).items()
        if not name.startswith("with_") and "DEPRECATED" not in keyword["description"]
    }
    ours = {word.name: set(word.states) for word in words("keyword") if not word.name.startswith("with_")}
    # `listen` and `local_action` are no keywords to ansible-doc, `validate_argspec` is newer than its list.
    assert {name for name, places in ours.items() if places != theirs.get(name)} == {
        *("listen", "local_action", "validate_argspec")
    }
    assert set(theirs) - set(ours) == set()


# Those that issue 7 names: the language that a playbook may be written in.
PROMISED = {
    "play": "name hosts vars vars_files vars_prompt gather_facts pre_tasks tasks post_tasks handlers roles environment "
    "become become_user tags serial max_fail_percentage any_errors_fatal ignore_errors collections module_defaults",
    "task": "name args vars when register loop with_items loop_control until retries delay changed_when failed_when "
    "ignore_errors ignore_unreachable notify tags environment become become_user delegate_to run_once check_mode diff "
    "no_log timeout throttle any_errors_fatal",
    "handler": "listen",
    "block": "block rescue always",
    "role": "name vars when tags become",
}


@pytest.mark.parametrize("place", PROMISED)
def test_each_promised_keyword_has_its_state_on_the_page(place: str) -> None:
    page = language_page()
    heads = next(line for line in page.splitlines() if line.startswith("| keyword |")).split(" | ")
    for name in PROMISED[place].split():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |")).split(" | ")
        state = row[heads.index(place)]
        assert state in ("same", "different", "absent"), name
        supported = {where: keywords[name].supported for where, keywords in KEYWORDS.items() if name in keywords}
        assert (state != "absent") == supported.get(place, state != "absent"), name  # type: ignore[call-overload]


def test_each_module_of_ansible_that_is_refused_is_absent_on_the_page() -> None:
    """The loader and the page read one table."""
    states = {name: word.state for word in words("module") for name in word.names}
    assert {name: states.get(name) for name in MODULES_LATER} == dict.fromkeys(MODULES_LATER, "absent")


@pytest.mark.parametrize("kind", ["filter", "test", "lookup", "module"])
def test_no_name_of_ansible_is_left_out(kind: str) -> None:
    argv = [str(Path(sys.executable).parent / "ansible-doc"), "-t", kind, "--list", "--json"]
    listed = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    theirs = {name.removeprefix("ansible.builtin.") for name in listed if name.startswith("ansible.builtin.")}
    assert theirs - {name for word in words(kind) for name in word.names} == set()


@pytest.mark.parametrize("arguments", [("schema",), ("doc", "--list"), ("doc", "copy")])
def test_they_start_without_what_a_run_needs(arguments: tuple[str, ...]) -> None:
    program = (
        "import sys\nfrom crossgrade.cli import main\n"
        f"try:\n    main(['crossgrade', *{arguments!r}])\nexcept SystemExit:\n    pass\n"
        "heavy = {'paramiko', 'matplotlib', 'scipy', 'aiohttp', 'rich', 'structlog', 'sqlite3', 'numpy'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))"
    )
    done: Any = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"
