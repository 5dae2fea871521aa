"""shell, script, pause, ping, setup, git, uri, wait_for and their kin give what real ansible-core gives.

All tasks of a group stand in one playbook that either tool runs once; what they registered is written to a file by the
playbook itself and compared. Times, tracebacks and wording of failures are left out.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.commands import crossgrade

ANSIBLE = Path(sys.executable).parent / "ansible-playbook"
_OF_NO_MEANING = {"start", "end", "stop", "delta", "exception", "warnings", "deprecations", "_ansible_no_log"}
# a failure is compared by its being one, its exit status and output: the words are each tool's own
_OF_A_FAILURE = {"failed", "changed", "rc", "stdout", "stderr", "status", "skipped"}

# name → the task's module and arguments. {here} is the playbook's folder.
RUNS: dict[str, dict[str, Any]] = {
    "shell_free_form": {"shell": "echo one | tr o 0; pwd"},
    "shell_variables": {"shell": "x=3; echo $x $HOME $((x + 1))"},
    "shell_options_in_the_text": {"shell": "pwd && echo cmd=3 a=b chdir=/"},
    "shell_chdir_and_stdin": {"shell": {"cmd": "cat; pwd", "chdir": "/usr", "stdin": "given"}},
    "shell_stdin_as_it_is": {"shell": {"cmd": "wc -c", "stdin": "abc", "stdin_add_newline": False}},
    "shell_other_shell": {"shell": {"cmd": "echo ${BASH_VERSION:+bash}", "executable": "/bin/bash"}},
    "shell_many_lines": {"shell": "for i in 1 2; do\n  echo $i\ndone\n"},
    "shell_creates": {"shell": {"cmd": "echo no", "creates": "/usr"}},
    "shell_creates_glob": {"shell": {"cmd": "echo no", "creates": "/usr/bi*"}},
    "shell_removes": {"shell": {"cmd": "echo no", "removes": "/nope/*"}},
    "shell_empty_ends": {"shell": {"cmd": "printf 'a\\n\\n'", "strip_empty_ends": False}},
    "shell_fails": {"shell": "echo out; echo err >&2; exit 7"},
    "shell_of_a_program_not_there": {"shell": "exec /nope"},
    "shell_quotes": {"shell": "echo 'a  b' \"c'd\" e\\ f"},
    "command_free_form": {"command": "echo '' \"a b\" c=d 'x y=z'"},
    "command_of_an_option": {"command": "echo cmd=3 argv=4 expand_argument_vars=no"},
    "command_expands": {"command": "echo $HOME ~ $NOT_THERE"},
    "command_as_it_is": {"command": {"argv": ["echo", "$HOME"], "expand_argument_vars": False}},
    "command_chdir": {"command": {"cmd": "pwd", "chdir": "/usr"}},
    "command_executable": {"command": {"cmd": "echo a", "executable": "/bin/bash"}},
    "script_arguments": {"script": "hello.sh one 'two three' $HOME"},
    "script_without_a_first_line": {"script": "plain.sh a"},
    "script_executable": {"script": {"cmd": "plain.sh b", "executable": "/bin/sh -e", "chdir": "/usr"}},
    "script_in_files": {"script": "filed.sh"},
    "script_creates": {"script": {"cmd": "hello.sh", "creates": "/usr"}},
    "script_removes": {"script": {"cmd": "hello.sh", "removes": "/nope"}},
    "script_fails": {"script": "fails.sh"},
    "ping": {"ping": None},
    "ping_data": {"ping": {"data": "hallo"}},
    "pause": {"pause": {"seconds": 1}},
    "pause_unattended": {"pause": {"prompt": "Really?"}},
    "pause_not_at_all": {"pause": {"seconds": 0, "echo": False}},
    "setup_filter": {"setup": {"filter": ["hostname", "ansible_distribution*", "kernel", "*nope*"]}},
    "assert_holds": {"assert": {"that": ["1 < 2", "true"], "success_msg": "fine"}},
    "assert_quiet": {"assert": {"that": "1 < 2", "quiet": True}},
    "assert_fails": {"assert": {"that": ["1 > 2"], "fail_msg": "no"}},
    "debug_var": {"debug": {"var": "1 + 1"}},
    "debug_msg": {"debug": {"msg": [1, "two"]}},
    "debug_verbosity": {"debug": {"msg": "x", "verbosity": 2}},
    "debug_nothing": {"debug": None},
    "set_fact": {"set_fact": {"one": 1, "cacheable": True}},
    "fail": {"fail": {"msg": "no"}},
    "wait_for_path": {"wait_for": {"path": "{here}/hello.sh"}},
    "wait_for_absent": {"wait_for": {"path": "{here}/nope", "state": "absent"}},
    "wait_for_text": {"wait_for": {"path": "{here}/hello.sh", "search_regex": "for (?P<name>\\w+) in (\\S+)"}},
    "wait_for_port_stopped": {"wait_for": {"port": 9, "state": "stopped", "timeout": 2}},
    "wait_for_in_vain": {"wait_for": {"path": "{here}/nope", "timeout": 1, "msg": "gone"}},
    "wait_for_time": {"wait_for": {"timeout": 1}},
}
GIT: dict[str, dict[str, Any]] = {
    "git_clone": {"git": {"repo": "{here}/up", "dest": "{here}/one"}},
    "git_again": {"git": {"repo": "{here}/up", "dest": "{here}/one"}},
    "git_branch": {"git": {"repo": "{here}/up", "dest": "{here}/one", "version": "dev"}},
    "git_where": {"command": "git -C {here}/one status -sb"},
    "git_tag": {"git": {"repo": "{here}/up", "dest": "{here}/one", "version": "v1"}},
    "git_detached": {"command": "git -C {here}/one status -sb"},
    "git_change": {"shell": "echo x > {here}/one/f"},
    "git_force": {"git": {"repo": "{here}/up", "dest": "{here}/one", "version": "main", "force": True}},
    "git_clean": {"command": "git -C {here}/one status -s"},
    "git_no_update": {"git": {"repo": "{here}/up", "dest": "{here}/one", "version": "v1", "update": False}},
    "git_bare": {"git": {"repo": "{here}/up", "dest": "{here}/bare", "bare": True}},
    "git_shallow": {"git": {"repo": "file://{here}/up", "dest": "{here}/shallow", "version": "dev", "depth": 1}},
    "git_shallow_log": {"command": "git -C {here}/shallow log --oneline --format=%s"},
    "git_commit": {"git": {"repo": "{here}/up", "dest": "{here}/commit", "version": "{first}"}},
    "git_short_commit": {"git": {"repo": "{here}/up", "dest": "{here}/commit", "version": "{short}"}},
    "git_into_subfolders": {"git": {"repo": "{here}/up", "dest": "{here}/a/b/c/"}},
    "git_other_remote": {"git": {"repo": "{here}/up", "dest": "{here}/remote", "remote": "upstream"}},
    "git_remotes": {"command": "git -C {here}/remote remote"},
}
_SECONDS = re.compile(r"\d+\.\d+ (seconds|minutes)")


def git(folder: Path, *words: str) -> str:
    argv = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=n@localhost", *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def repository(folder: Path) -> str:
    """main and dev, a tag, three commits; returns the first commit."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "f").write_text("1\n")
    git(folder, "add", "f")
    git(folder, "commit", "--quiet", "-m", "one")
    git(folder, "tag", "v1")
    git(folder, "checkout", "--quiet", "-b", "dev")
    (folder / "f").write_text("2\n")
    git(folder, "commit", "--quiet", "-am", "two")
    git(folder, "checkout", "--quiet", "main")
    (folder / "g").write_text("3\n")
    git(folder, "add", "g")
    git(folder, "commit", "--quiet", "-m", "three")
    return git(folder, "rev-parse", "v1")


def scripts(folder: Path) -> None:
    (folder / "hello.sh").write_text('#!/bin/sh\npwd\nfor word in "$@"; do echo "<$word>"; done\necho err >&2\n')
    (folder / "plain.sh").write_text('echo plain "$@" $(pwd)\n')
    (folder / "fails.sh").write_text("#!/bin/sh\necho out; echo err >&2; exit 4\n")
    (folder / "files").mkdir()
    (folder / "files" / "filed.sh").write_text("#!/bin/sh\necho filed\n")


def play(folder: Path, tasks: dict[str, dict[str, Any]], words: dict[str, str]) -> Path:
    written: list[dict[str, Any]] = []
    for name, task in tasks.items():
        filled = json.loads(_filled(json.dumps(task), {"here": str(folder), **words}))
        written.append({"name": name, **filled, "register": f"r_{name}", "ignore_errors": True})
    pairs = ", ".join(f"'{name}': r_{name}" for name in tasks)
    written.append({"copy": {"content": "{{ {" + pairs + "} | to_json }}", "dest": f"{folder}/answers.json"}})
    document = [{"hosts": "localhost", "gather_facts": False, "tasks": written}]
    (folder / "play.yml").write_text(yaml.safe_dump(document, sort_keys=False))
    return folder / "play.yml"


def _filled(text: str, words: dict[str, str]) -> str:
    for name, value in words.items():
        text = text.replace("{" + name + "}", value)
    return text


def answers(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "answers.json").read_text())
    return {name: compared(value, folder) for name, value in found.items()}


def compared(value: dict[str, Any], folder: Path) -> dict[str, Any]:
    if value.get("failed"):
        value = {name: item for name, item in value.items() if name in _OF_A_FAILURE}
    if value.get("skipped"):  # on purpose: `r.failed` of a skipped task is false here, and undefined there
        value = {name: item for name, item in value.items() if name != "failed"}
    value = {name: item for name, item in value.items() if name not in _OF_NO_MEANING}
    plain: dict[str, Any] = json.loads(_SECONDS.sub(r"N \1", json.dumps(value).replace(str(folder), "HERE")))
    return plain


def both(tmp_path: Path, tasks: dict[str, dict[str, Any]], *, with_git: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    found = []
    for tool in ("ansible", "crossgrade"):
        folder = tmp_path / tool
        folder.mkdir()
        scripts(folder)
        first = repository(folder / "up") if with_git else ""
        path = play(folder, tasks, {"first": first, "short": first[:10]})
        environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCALHOST_WARNING": "False"}
        if tool == "ansible":
            argv: list[str | Path] = [ANSIBLE, "-i", "localhost,", "-c", "local", path]
            argv += ["-e", f"ansible_python_interpreter={sys.executable}"]
            ran = subprocess.run(
                argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
            assert ran.returncode == 0, ran.stdout + ran.stderr
        else:
            answer = crossgrade("upgrade", "--playbook", path, "-i", "localhost,", "--root", folder / "root", "-y")
            assert answer.code == 0, answer.stdout + answer.stderr
        found.append(answers(folder))
    return found[0], found[1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    return both(tmp_path_factory.mktemp("runs"), RUNS, with_git=False)


@pytest.fixture(scope="module")
def gits(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    return both(tmp_path_factory.mktemp("gits"), GIT, with_git=True)


@pytest.mark.parametrize("name", RUNS)
def test_the_result_is_ansibles(name: str, runs: tuple[dict[str, Any], dict[str, Any]]) -> None:
    theirs, ours = runs[0][name], runs[1][name]
    assert ours == theirs


@pytest.mark.parametrize("name", GIT)
def test_git_is_ansibles(name: str, gits: tuple[dict[str, Any], dict[str, Any]]) -> None:
    theirs, ours = _commits_named(gits[0], name), _commits_named(gits[1], name)
    assert ours == theirs


def _commits_named(found: dict[str, Any], name: str) -> Any:
    """Commits by the order in which they came up: each tool has a repository of its own, made at another second."""
    text = json.dumps(found)
    order = dict.fromkeys(part for part in text.replace('"', " ").split() if len(part) == 40 and part.isalnum())
    for number, commit in enumerate(order):
        text = text.replace(commit, f"commit{number}")
    return json.loads(text)[name]
