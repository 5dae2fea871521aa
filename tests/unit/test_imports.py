"""Mistakes in imports, includes and roles: each is told with its place and with where was looked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from crossgrade.errors import PlaybookError
from crossgrade.modules import NAMES, arguments_of
from crossgrade.playbook.build_task import ModuleCatalogue
from crossgrade.playbook.check import check_templates
from crossgrade.playbook.loader import load_playbook
from crossgrade.playbook.model import Block, Playbook, Task, walk

HEAD = "- hosts: localhost\n"


@pytest.fixture(autouse=True)
def _no_roles_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_ROLES_PATH", "/nowhere")


def load(folder: Path, files: Mapping[str, str], extra: Mapping[str, object] | None = None) -> Playbook:
    """`play` and other files; `__` is a slash."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD + text if name == "play" and not text.startswith("-") else text)
    return load_playbook(folder / "play.yml", ModuleCatalogue(NAMES, arguments_of), extra)


def told(folder: Path, **files: str) -> str:
    """What is said of a playbook that cannot be read, without the folder's name."""
    with pytest.raises(PlaybookError) as caught:
        load(folder, files)
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  tasks: [{import_tasks: gone.yml}]", "play.yml:2:26: there is no file of tasks `gone.yml`"),
        ("  tasks: [{import_tasks: gone.yml}]", "Looked for: gone.yml."),
        ("  tasks: [{import_tasks: {file: gone.yml}}]", "play.yml:2:33: there is no file of tasks `gone.yml`"),
        ("  tasks: [{import_tasks: '{{ later }}.yml'}]", "the name must be known before the run"),
        ("  tasks: [{import_tasks: play.yml, loop: [1]}]", "`import_tasks` cannot have `loop`"),
        ("  tasks: [{import_tasks: play.yml, register: r}]", "`include_tasks` is a task of its own"),
        ("  tasks: [{include_tasks: a.yml, environment: {A: b}}]", "Write it below `apply`"),
        ("  tasks: [{include_tasks: a.yml, notify: x}]", "`include_tasks` cannot have `notify`"),
        ("  tasks: [{include_tasks: {file: a.yml, apply: {loop: [1]}}}]", "`loop` is a keyword of a task"),
        ("  tasks: [{include_tasks: {file: a.yml, aply: {}}}]", 'Did you mean "apply"?'),
        ("  tasks: [{include_tasks: }]", "file"),
        ("  tasks: [{import_role: {name: gone}}]", "play.yml:2:32: there is no role `gone`"),
        ("  tasks: [{import_role: {name: gone}}]", "Looked for: roles/gone, /nowhere/gone, gone."),
        ("  tasks: [{import_role: {tasks_from: x}}]", "name"),
        ("  tasks: [{include_role: {name: r, tasks_form: x}}]", 'Did you mean "tasks_from"?'),
        ("  handlers: [{name: h, import_role: {name: r}}]", "cannot stand among the handlers"),
        ("  handlers: [{name: h, include_role: {name: r}}]", "cannot stand among the handlers"),
        ("  roles: r", "expected a list of roles"),
        ("  roles: [gone]", "play.yml:2:11: there is no role `gone`"),
        ("  roles: [{port: 1}]", "the role has no name"),
        ("  roles: [1]", "expected a mapping"),
        ("  roles: [{role: r, 1a: 2}]", "cannot be the name of a variable"),
        ("  roles: ['{{ later }}']", "the name must be known before the run"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in told(tmp_path, play=text)


ROLE = "  roles: [r]"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"roles__r__tasks__main": "- {debgu: {msg: x}}"}, "roles/r/tasks/main.yml:1:4: there is no module or keyword"),
        ({"roles__r__tasks__main": "- [unclosed"}, "roles/r/tasks/main.yml:"),
        ({"roles__r__tasks__main": "a: 1"}, "Each task starts with `- `"),
        ({"roles__r__handlers__main": "- {nme: x}"}, "roles/r/handlers/main.yml:1:"),
        ({"roles__r__vars__main": "- a"}, "roles/r/vars/main.yml:1:1: expected a mapping"),
        ({"roles__r__defaults__main": "a b: 1"}, "roles/r/defaults/main.yml:1:1"),
        ({"roles__r__meta__main": "dependencies: [gone]"}, "roles/r/meta/main.yml:1:16: there is no role `gone`"),
        ({"roles__r__meta__main": "dependencies: 1"}, "expected a list of roles"),
        ({"roles__r__meta__main": "dependencies: [r]"}, "the role needs itself"),
        (
            {"roles__r__meta__main": "argument_specs: {main: {}}"},
            "roles/r/meta/main.yml:1:1: a role's `argument_specs`",
        ),
        ({"roles__r__meta__argument_specs": "argument_specs: {main: {}}"}, "roles/r/meta/argument_specs.yml:1:1"),
    ],
)
def test_mistakes_in_a_role_are_told_in_its_own_file(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    (tmp_path / "roles/r").mkdir(parents=True)
    assert expected in told(tmp_path, play=ROLE, **files)


@pytest.mark.parametrize("keyword", ["tasks_from", "vars_from", "defaults_from", "handlers_from"])
def test_a_file_of_a_role_that_is_named_must_be_there(tmp_path: Path, keyword: str) -> None:
    (tmp_path / "roles/r").mkdir(parents=True)
    folder = keyword.removesuffix("_from")
    said = told(tmp_path, play=f"  tasks: [{{import_role: {{name: r, {keyword}: gone}}}}]")
    assert f"the role has no {folder}/gone" in said
    assert f"roles/r/{folder}/gone.yml" in said


def test_imports_in_a_circle_are_told_before_the_run(tmp_path: Path) -> None:
    said = told(tmp_path, play="  tasks: [{import_tasks: a.yml}]", a="- import_tasks: b.yml", b="- import_tasks: a.yml")
    assert "b.yml:1:17: `a.yml` imports itself: a.yml → b.yml → a.yml" in said
    said = told(tmp_path, play="- import_playbook: other.yml", other="- import_playbook: play.yml")
    assert "other.yml:1:20: the playbook imports itself: play.yml → other.yml → play.yml" in said
    a = "- {import_role: {name: b}}"
    said = told(tmp_path, play="  roles: [a]", roles__a__tasks__main=a, roles__b__tasks__main=a.replace("b", "a"))
    assert "the role needs itself" in said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- import_playbook: gone.yml", "play.yml:1:20: there is no playbook `gone.yml`"),
        ("- {import_playbook: gone.yml, hosts: a}", "`import_playbook` has no keyword `hosts`"),
        ("- import_playbook: '{{ later }}'", "the name must be known before the run"),
        ("- import_playbook: [a]", "expected a name"),
    ],
)
def test_mistakes_in_import_playbook(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in told(tmp_path, play=text)


def test_problems_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    play = "  tasks: [{import_tasks: a.yml}, {debgu: {}}, {import_tasks: a.yml}]"
    said = told(tmp_path, play=play, a="- {nothing: 1}\n- {debug: {msgg: 1}}")
    assert said.count("a.yml:1:4: ") == 1
    assert "play.yml:2:35: " in said
    assert "a.yml:2:12: " in said


def test_names_of_imports_may_use_extra_variables_and_those_of_the_play(tmp_path: Path) -> None:
    play = "  vars: {kind: a}\n  tasks: [{import_tasks: '{{ kind }}.yml'}, {import_tasks: '{{ other }}.yml'}]"
    files = {"play": play, "a": "- debug: {msg: a}", "b": "- debug: {msg: b}"}
    tasks = list(walk(load(tmp_path, files, {"other": "b"}).plays[0].tasks))
    assert [task.arguments["msg"] for task in tasks] == ["a", "b"]


def test_a_static_import_hands_down_what_a_dynamic_one_does_not(tmp_path: Path) -> None:
    keywords = "tags: [t], when: x, vars: {v: 1}"
    play = f"  tasks: [{{import_tasks: a.yml, no_log: true, {keywords}}}, {{include_tasks: a.yml, {keywords}}}]"
    imported, included = load(tmp_path, {"play": play, "a": "- {debug: {msg: a}, tags: own, when: y}"}).plays[0].tasks
    assert isinstance(imported, Block)
    inside = imported.block[0]
    assert isinstance(inside, Task)
    assert (inside.tags, inside.when, inside.vars, inside.no_log) == (("t", "own"), ("x", "y"), {"v": 1}, True)
    assert isinstance(included, Task)
    assert included.inherited is not None
    assert (included.inherited.tags, included.inherited.when, included.inherited.vars) == ((), (), {})


@pytest.mark.parametrize("name", ["~nobody-of-that-name/a", "a" * 5000, "a\\0b", "..", "~", "/", "//x"])
def test_odd_names_are_told_too(tmp_path: Path, name: str) -> None:
    for statement in ("import_tasks: %s", "import_role: {name: %s}", "import_role: {name: r, tasks_from: %s}"):
        (tmp_path / "roles/r").mkdir(parents=True, exist_ok=True)
        if statement.endswith("{name: %s}") and name in ("..", "~", "/"):
            continue  # these are directories, and may be roles
        text = statement % f'"{name}"'
        assert "play.yml:2:" in told(tmp_path, play=f"  tasks: [{{{text}}}]")
    assert "play.yml:1:" in told(tmp_path, play=f'- import_playbook: "{name}"')


def test_uids_are_the_way_to_a_task(tmp_path: Path) -> None:
    play = "  roles: [r]\n  tasks: [{import_tasks: a.yml}, {import_role: {name: r}}]"
    playbook = load(tmp_path, {"play": play, "a": "- debug: {msg: a}", "roles__r__tasks__main": "- debug: {msg: r}"})
    uids = [task.uid for task in walk(playbook.plays[0].tasks)]
    assert uids == ["play0/roles/0/tasks/0", "play0/tasks/0/file/0", "play0/tasks/1/tasks/0"]


def test_templates_of_imported_files_are_checked_each_in_its_own_file(tmp_path: Path) -> None:
    wrong = "- {debug: {msg: '{{ x | }}'}}"
    play = "  tasks: [{import_tasks: a.yml}, {import_tasks: b.yml}, {include_tasks: c.yml}, {include_tasks: c.yml}]"
    playbook = load(tmp_path, {"play": play, "a": wrong, "b": wrong, "c": wrong})
    places = [Path(problem.place.file).name for problem in check_templates(playbook) if problem.place]
    assert places == ["a.yml", "b.yml", "c.yml"]


def test_the_library_knows_every_file_that_was_read(tmp_path: Path) -> None:
    files = {
        "play": "- import_playbook: sub/other.yml",
        "sub__other": "- {hosts: localhost, roles: [r], tasks: [{import_tasks: a.yml}]}",
        "sub__a": "- debug: {msg: a}",
        "sub__roles__r__tasks__main": "- debug: {msg: r}",
        "sub__roles__r__defaults__main": "a: 1",
        "sub__roles__r__meta__main": "dependencies: []",
    }
    library = load(tmp_path, files).library
    assert library is not None
    expected = {str(tmp_path / f"{name.replace('__', '/')}.yml") for name in files if name != "play"}
    assert set(library.digests) == expected
