"""Builds as a user starts them: by the program, with a saved plan, with a failure, and killed in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.support.commands import PROGRAM, crossgrade, processes_below
from tests.support.small_project import CMAKE, commit_all, write_project
from tests.support.tiny_wheels import tiny_venv, tiny_wheel

from crossgrade.store.layout import Store

PLAYBOOK = """
- hosts: localhost
  tasks:
    - name: Kernels
      extension_build:
        git: "@GIT@"
        revision: main
        subdirectory: kernels
        build_requirements: [setuptools>=61, ninja]
      register: kernels
    - name: Tell
      debug: {msg: "{{ kernels.commit }}"}
"""


def options(repository: Path) -> tuple[str, str, str, str]:
    (repository.parent / "play.yml").write_text(PLAYBOOK.replace("@GIT@", f"file://{repository}"))
    return "--playbook", str(repository.parent / "play.yml"), "--root", str(repository.parent / "root")


def store_of(repository: Path) -> Store:
    return Store(repository.parent / "root" / "store")


def test_a_saved_plan_builds_the_commit_that_it_named(repository: Path, tmp_path: Path) -> None:
    planned = _head(repository)
    plan = tmp_path / "plan.json"
    answer = crossgrade("plan", *options(repository), "-o", plan)
    assert answer.code == 0, answer.stderr
    assert f"build repository {planned[:12]} with" in answer.stdout
    (repository / "kernels" / "one.c").write_text("int one(void) { return 2; }\n")
    moved = commit_all(repository)
    answer = crossgrade("upgrade", *options(repository), "--plan", plan, "--yes", "--json")
    assert answer.code == 0, answer.stdout[-2000:]
    result = answer.result("Kernels")
    assert f"main has moved to {moved[:12]} since the plan; {planned[:12]} was built" in json.dumps(result)
    progress = [event["message"] for event in answer.of_kind("task_progress")]
    assert any(message.startswith("[4/4]") for message in progress), progress
    assert not answer.of_kind("prediction_differs")
    # without the plan, the new commit is another build; with it, once more, there is nothing to do
    again = crossgrade("upgrade", *options(repository), "--plan", plan, "--yes", "--json")
    assert again.result("Kernels")["status"] == "ok"
    assert f"build repository {moved[:12]} with" in crossgrade("plan", *options(repository)).stdout
    # what only builds need may go, the wheel stays
    gone = crossgrade("gc", *options(repository)).stdout
    assert f"removed for builds: sources/git-{planned}" in gone
    assert not list(store_of(repository).build_environment("any").parent.iterdir())
    assert list(store_of(repository).wheel_folder("any").parent.glob("*/*.whl"))


WITH_A_CANDIDATE = """
    - venv_backup: {path: "{{ playbook_dir }}/env"}
    - name: Candidate
      python_env:
        requirements: [tiny-tool]
        find_links: ["{{ playbook_dir }}/links"]
        wheels: ["{{ kernels.wheel }}"]
"""


@pytest.mark.parametrize("installed", ["0.9", "1.0", None])
def test_a_plan_counts_no_change_of_a_dist_whose_version_its_build_will_tell(
    repository: Path, tmp_path: Path, installed: str | None
) -> None:
    links = tmp_path / "links"
    links.mkdir()
    tool = tiny_wheel(links, "tiny-tool", "1.0")
    older = [tiny_wheel(tmp_path, "small-kernels", installed)] if installed else []
    tiny_venv(tmp_path / "env", tool, *older)
    arguments = options(repository)
    play = tmp_path / "play.yml"
    from_git = f'git: "file://{repository}"\n        revision: main\n        subdirectory: kernels'
    from_folder = f'source: "{repository}/kernels"'
    play.write_text(
        play.read_text().replace(from_git, from_folder).replace("kernels.commit", "kernels.wheel") + WITH_A_CANDIDATE
    )
    planned = crossgrade("plan", *arguments)
    assert planned.code == 0, planned.stderr
    assert "1 dist, 1 wheel built here" in planned.stdout
    assert "no version changes" in planned.stdout
    done = crossgrade("upgrade", *arguments, "--yes", "--json")
    assert done.code == 0, done.stdout[-2000:]
    assert not done.of_kind("prediction_differs")


def _head(repository: Path) -> str:
    argv = ["git", "-C", str(repository), "rev-parse", "HEAD"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def test_a_failed_build_comes_with_its_explanation_and_leaves_nothing(repository: Path) -> None:
    (repository / "kernels" / "two.c").write_text("#include <cuda_runtime.h>\nint two(void) { return 2; }\n")
    commit_all(repository)
    answer = crossgrade("upgrade", *options(repository), "--yes", "--json")
    assert answer.code == 2, answer.stdout[-2000:]
    result = answer.result("Kernels")
    assert "cuda_runtime.h" in result["message"]
    assert result["explanations"], result["message"]
    log = next(word for word in result["message"].split() if word.endswith(".log."))[:-1]
    assert "FAILED:" in Path(log).read_text()
    assert not list(store_of(repository).temporary.iterdir())
    assert not list(store_of(repository).wheel_folder("any").parent.iterdir())
    assert answer.ended["evidence"], "the last lines are among the evidence"


SLOW = CMAKE + "add_custom_target(wait ALL COMMAND sleep 100)\n"


def test_a_build_that_is_killed_leaves_no_process_and_no_file(repository: Path) -> None:
    write_project(repository / "kernels", cmake=SLOW)
    commit_all(repository)
    argv = [str(PROGRAM), "upgrade", *options(repository), "--yes", "--json"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "task_progress" and event["message"].startswith("["):
                break
        else:
            pytest.fail("ninja was not seen to begin")
        process.send_signal(signal.SIGKILL)
        process.stdout.read()
    assert process.returncode == -signal.SIGKILL
    root = repository.parent / "root"
    deadline = time.monotonic() + 10
    while left := processes_below(root):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert list(store_of(repository).temporary.iterdir()), "it was in the middle"
    answer = crossgrade("rollback", *options(repository))
    assert answer.code == 0, answer.stderr
    assert not list(store_of(repository).temporary.iterdir())
    assert not list(store_of(repository).wheel_folder("any").parent.iterdir())
