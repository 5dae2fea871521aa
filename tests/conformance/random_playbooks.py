"""Random playbooks from what Ansible and crossgrade have in common, as hypothesis strategies.

`cases()` gives a `Case`: one or two plays over one or two local hosts, with variables at several levels, tasks with
conditions, loops and results, blocks, includes, a role, handlers, and options. What is left out differs on purpose
(`differences.yml`): handlers that are not there, files that are not there, names that are not defined in names.
"""

from __future__ import annotations

import itertools
from typing import Any

import yaml
from hypothesis import strategies as st
from tests.support.both_ways import Case

INVENTORY = "[all:vars]\nansible_connection=local\nfrom_all=1\n[one]\nh1 n=1\n[two]\nh2 n=2\n[one:vars]\ngrouped=yes\n"
NAMES = ("a", "b", "c")
RESULTS = ("r", "s")
HANDLERS = ("h1", "h2", "h3")
TOPICS = ("topic", "other")
TAGS = ("t", "u", "always", "never")
_NUMBERS = itertools.count()

Json = dict[str, Any]
Draw = st.DrawFn


def _maybe(strategy: st.SearchStrategy[Any], one_in: int = 3) -> st.SearchStrategy[Any]:
    """None most of the time; shrinks to None."""
    return st.integers(0, one_in - 1).flatmap(lambda drawn: strategy if drawn == one_in - 1 else st.none())


def _words(choices: tuple[str, ...], at_most: int = 2) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(choices), min_size=1, max_size=at_most, unique=True)


def _mostly(seldom: list[Any], often: list[Any]) -> st.SearchStrategy[Any]:
    """What is likely to fail, seldom: a playbook whose plan already fails is not begun here."""
    return st.sampled_from([*often, *often, *often, *seldom])


VALUES = st.sampled_from(
    [1, 2, "one", "two words", True, False, [1, 2], {"k": 1}, "{{ n | default(0) }}", "{{ a }}", ""]
)
# A variable that is defined by itself is an error when the plan comes to it; Ansible lets some uses of it pass.
VARIABLES = st.dictionaries(st.sampled_from(NAMES), VALUES, min_size=1, max_size=2).map(
    lambda values: {name: 0 if name == "a" and value == "{{ a }}" else value for name, value in values.items()}
)
TEXTS = _mostly(
    ["{{ a }}"],
    [
        "plain",
        "{{ a | default('no a') }}",
        "{{ b | default('no b') }} {{ item | default('no item') }}",
        "{{ r is defined }} {{ (r | default({})).changed | default('?') }}",
        "{{ (s | default({})).failed | default('?') }} {{ (s | default({})).skipped | default('?') }}",
        "{{ (r | default({})).results | default([]) | length }}",
        "{{ ansible_failed_task.name | default('none') }} {{ ansible_failed_result.msg is defined }}",
        "{{ grouped | default('not') }} {{ n | default('-') }} {{ d | default('no default') }}",
        "{{ ansible_play_hosts | length }} {{ group_names }}",
    ],
)
CONDITIONS = _mostly(
    ["a == 1", "r is changed"],
    [
        True,
        False,
        "1 == 1",
        "1 > 2",
        "a is defined",
        "b is not defined",
        "a | default(0) == 1",
        "c | default(false) == true",
        "r is defined and r is changed",
        "r is defined and r is skipped",
        "s is defined and s is failed",
        "r is defined and r is succeeded",
        "n | default(1) | int == 1",
        "item | default(1) != 2",
    ],
)
JUDGEMENTS = _mostly(
    ["s is failed", "b == 1"],
    [True, False, "a is defined", "item | default(1) == 2", "r is defined and r is changed"],
)
LOOPS = st.sampled_from(
    [
        [1, 2],
        [1, 2, 3],
        [],
        ["x"],
        "{{ b }}",
        "{{ (r | default({})).results | default([]) | map(attribute='changed') }}",
    ]
)


@st.composite
def _modules(draw: Draw) -> Json:
    kind = draw(st.sampled_from(["debug", "set_fact", "command", "copy", "false", "assert", "fail"]))
    if kind == "debug":
        return {"debug": {"msg": draw(TEXTS)}}
    if kind == "set_fact":
        return {"set_fact": draw(VARIABLES)}
    if kind == "command":
        words = draw(st.sampled_from(["one", "{{ a | default('x') }}", "{{ item | default('y') }}"]))
        return {"command": f"say {{{{ inventory_hostname }}}} {words}"}
    if kind == "copy":
        path = "{{ out }}/{{ inventory_hostname }}-" + draw(st.sampled_from(["f", "g", "{{ item | default(0) }}"]))
        return {"copy": {"content": draw(st.sampled_from(["x", "y", "{{ n | default(0) }}"])), "dest": path}}
    if kind == "false":  # fails in the run, and no plan sees it
        return {"command": "false", "when": draw(CONDITIONS)}
    ignored = draw(st.sampled_from([True, True, True, False]))
    if kind == "fail":
        return {"fail": {"msg": draw(TEXTS)}, "ignore_errors": ignored}
    return {"assert": {"that": draw(CONDITIONS)}, "ignore_errors": ignored}


@st.composite
def _tasks(draw: Draw, handlers: bool = True) -> Json:
    task: Json = {}
    if draw(st.booleans()):
        task["name"] = draw(st.sampled_from(["first", "second", "third"]))
    task |= draw(_modules())
    for keyword, strategy, one_in in (
        ("when", CONDITIONS, 3),
        ("loop", LOOPS, 4),
        ("register", st.sampled_from(RESULTS), 3),
        ("changed_when", JUDGEMENTS, 4),
        ("failed_when", JUDGEMENTS, 6),
        ("ignore_errors", st.sampled_from([True, False, "{{ a is defined }}"]), 4),
        ("notify", _words((*HANDLERS, *TOPICS)), 3 if handlers else 0),
        ("tags", _words(TAGS), 5),
        ("vars", VARIABLES, 5),
        ("run_once", st.just(True), 12),
        ("check_mode", st.booleans(), 12),
        ("any_errors_fatal", st.booleans(), 20),
    ):
        drawn = draw(_maybe(strategy, one_in)) if one_in else None
        if drawn is not None:
            task[keyword] = drawn
    if "loop" in task and isinstance(task.get("ignore_errors"), str):
        task["ignore_errors"] = True  # a list in error makes Ansible take the template's text for true
    return task


@st.composite
def _metas(draw: Draw) -> Json:
    words = ["flush_handlers", "noop", "end_host", "end_play", "end_batch", "clear_host_errors"]
    task: Json = {"meta": draw(st.sampled_from(words))}
    when = None if task["meta"] == "flush_handlers" else draw(_maybe(CONDITIONS, 2))
    if when is not None:
        task["when"] = when
    return task


@st.composite
def _includes(draw: Draw, files: list[str]) -> Json:
    how = draw(st.sampled_from(["include_tasks", "import_tasks", "include_role", "import_role"]))
    if how.endswith("role"):
        task: Json = {how: {"name": "role"}}
    else:
        task = {how: {"file": draw(st.sampled_from(files))}}
    dynamic = how.startswith("include")
    if dynamic and draw(st.integers(0, 3)) == 3:
        task[how]["apply"] = {"tags": draw(_words(TAGS[:2]))}
    for keyword, strategy, one_in in (
        ("when", CONDITIONS, 3),
        ("tags", _words(TAGS), 4),
        ("vars", VARIABLES, 4),
        ("loop", LOOPS, 4 if dynamic else 0),
        ("register", st.sampled_from(RESULTS), 6 if dynamic else 0),
    ):
        drawn = draw(_maybe(strategy, one_in)) if one_in else None
        if drawn is not None:
            task[keyword] = drawn
    return task


@st.composite
def _steps(draw: Draw, files: list[str], depth: int, at_most: int = 4) -> list[Json]:
    kinds = ["task"] * 5 + ["meta"] + (["include"] if files else []) + (["block"] * 2 if depth else [])
    steps: list[Json] = []
    for _ in range(draw(st.integers(1, at_most))):
        kind = draw(st.sampled_from(kinds))
        if kind == "task":
            steps.append(draw(_tasks()))
        elif kind == "meta":
            steps.append(draw(_metas()))
        elif kind == "include":
            steps.append(draw(_includes(files)))
        else:
            steps.append(draw(_blocks(files, depth - 1)))
    return steps


@st.composite
def _blocks(draw: Draw, files: list[str], depth: int) -> Json:
    block: Json = {"block": draw(_steps(files, depth, 3))}
    for keyword, strategy, one_in in (
        ("rescue", _steps(files, depth, 2), 2),
        ("always", _steps(files, depth, 2), 3),
        ("when", CONDITIONS, 4),
        ("tags", _words(TAGS), 5),
        ("vars", VARIABLES, 5),
        ("ignore_errors", st.booleans(), 8),
        ("notify", _words(HANDLERS), 8),
    ):
        drawn = draw(_maybe(strategy, one_in))
        if drawn is not None:
            block[keyword] = drawn
    return block


@st.composite
def _handlers(draw: Draw) -> list[Json]:
    """One for each name, in any order, and one for each topic, so that whatever is notified is there."""
    handlers: list[Json] = []
    for name in draw(st.permutations(HANDLERS)):
        handler: Json = {"name": name, **draw(st.sampled_from([{"debug": {"msg": name}}, {"command": f"say {name}"}]))}
        if draw(st.booleans()):
            handler["listen"] = draw(_words(TOPICS))
        if (when := draw(_maybe(CONDITIONS, 4))) is not None:
            handler["when"] = when
        if draw(st.integers(0, 3)) == 3:
            handler |= {"changed_when": True, "notify": draw(_words(HANDLERS))}
        handlers.append(handler)
    return [*handlers, {"name": "listener", "debug": {"msg": "listens"}, "listen": list(TOPICS)}]


@st.composite
def _plays(draw: Draw, files: list[str]) -> Json:
    play: Json = {"hosts": draw(st.sampled_from(["all", "h1", "one:two", "all:!h2"])), "gather_facts": False}
    for keyword, strategy, one_in in (
        ("vars", VARIABLES, 2),
        ("vars_files", st.just(["vars.yml"]), 5),
        ("tags", _words(TAGS[:2]), 8),
        ("force_handlers", st.booleans(), 8),
        ("any_errors_fatal", st.booleans(), 8),
        ("ignore_errors", st.booleans(), 10),
        ("serial", st.just(1), 6),
        ("pre_tasks", _steps(files, 1, 2), 5),
        ("roles", st.sampled_from([["role"], [{"role": "role", "a": 5, "tags": "t"}], ["role", "role"]]), 4),
        ("post_tasks", _steps(files, 1, 2), 5),
    ):
        drawn = draw(_maybe(strategy, one_in))
        if drawn is not None:
            play[keyword] = drawn
    return {**play, "tasks": draw(_steps(files, 2)), "handlers": draw(_handlers())}


OPTIONS = st.lists(
    st.sampled_from(
        [
            ("--tags", "t"),
            ("--tags", "t,never"),
            ("--tags", "tagged"),
            ("--tags", "untagged"),
            ("--skip-tags", "u"),
            ("--skip-tags", "always"),
            ("-e", "a=extra"),
            ("-e", '{"b": [1, 2]}'),
            ("--force-handlers",),
            ("--limit", "h1"),
        ]
    ),
    max_size=2,
    unique_by=lambda option: option[0],
)


@st.composite
def cases(draw: Draw) -> Case:
    """A playbook with the files beside it and the options that both programs are given."""
    included = [f"part{number}.yml" for number in range(draw(st.integers(1, 2)))]
    files: dict[str, Any] = {name: draw(_steps([], 1, 3)) for name in included}
    files |= {
        "vars.yml": draw(VARIABLES),
        "roles/role/tasks/main.yml": draw(_steps([], 1, 2)),
        "roles/role/defaults/main.yml": {"d": "default", **draw(VARIABLES)},
    }
    if draw(st.booleans()):
        files["roles/role/vars/main.yml"] = draw(VARIABLES)
    if draw(st.booleans()):
        files["roles/role/handlers/main.yml"] = [{"name": "h2", "debug": {"msg": "h2 of the role"}}]
    plays = [draw(_plays(included)) for _ in range(draw(st.integers(1, 2)))]
    options = itertools.chain.from_iterable(draw(OPTIONS))
    texts = {name: yaml.safe_dump(content, sort_keys=False) for name, content in files.items()}
    return Case(
        f"random{next(_NUMBERS)}",
        yaml.safe_dump(plays, sort_keys=False),
        options=("-i", "hosts.ini", *options),
        files={**texts, "hosts.ini": INVENTORY},
    )
