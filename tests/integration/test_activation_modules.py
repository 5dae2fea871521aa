"""venv_backup and activate, on real venvs, with a live process and with SIGKILL."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.module_host import ModuleHost, plan_module, run_module, snapshot
from tests.support.store_host import (
    KilledError,
    StoreHost,
    adopted,
    build_candidate,
    planned_change,
    python,
    undo_steps,
    working_env,
)

from crossgrade.errors import StoreError, TaskError
from crossgrade.modules import activate, venv_backup
from crossgrade.modules.contract import Unchanged
from crossgrade.store.layout import Store
from crossgrade.store.manifest import compare, read_manifest

BACKUP = venv_backup.MODULE
ACTIVATE = activate.MODULE


@pytest.fixture
def host(tmp_path: Path) -> StoreHost:
    return StoreHost(tmp_path)


# ---- venv_backup


@pytest.fixture
def service(host: StoreHost) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A working environment with a program that runs from it and imports a module only when it is told to."""
    path = working_env(host.directory / "ml-env", host)
    code = "print('up', flush=True)\ninput()\nimport six\nprint(six.__file__, six.__version__, flush=True)"
    with subprocess.Popen(
        [str(path / "bin" / "python"), "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=path
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield path, process
        process.kill()


def test_what_runs_from_the_environment_goes_on_running(
    host: StoreHost, service: tuple[Path, subprocess.Popen[str]]
) -> None:
    path, process = service
    inode = next(path.rglob("six.py")).stat().st_ino
    before = snapshot(path)
    values = run_module(BACKUP, {"path": str(path)}, host).values
    assert values == {"generation": 1, "link": str(path)}
    assert path.is_symlink()
    assert next(host.store.venv(1).rglob("six.py")).stat().st_ino == inode, "moved, not copied"
    assert snapshot(host.store.venv(1)) == before
    out, _ = process.communicate("\n", timeout=60)
    assert out.split() == [str(path / next(iter(path.rglob("six.py"))).relative_to(path)), "1.16.0"]
    assert host.activations == [(None, 1)]
    assert compare(read_manifest(host.store.manifest_path(1)), path.resolve(), full=True).identical
    assert python(path / "bin" / "python", "import six; print(six.__version__)") == "1.16.0"
    # a second look, an undo of the complete backup, another path
    assert isinstance(plan_module(BACKUP, {"path": str(path)}, host), Unchanged)
    assert undo_steps(BACKUP, host) == [""]
    assert host.store.active() == 1
    with pytest.raises(TaskError, match="has adopted"):
        plan_module(BACKUP, {"path": str(host.directory / "other")}, host)


@pytest.mark.parametrize("point", ["progress", "record_activation"])
def test_a_kill_while_adopting_puts_everything_back(
    host: StoreHost, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    path = working_env(host.directory / "ml-env", host)
    before = snapshot(path)

    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(host, point, killed)
        with pytest.raises(KilledError):
            run_module(BACKUP, {"path": str(path)}, host)
    assert path.is_symlink() is (point == "record_activation")
    undo_steps(BACKUP, host)
    assert snapshot(path) == before
    assert host.store.generations() == []
    assert host.store.active() is None
    run_module(BACKUP, {"path": str(path)}, host)
    assert host.store.active() == 1


def test_the_environment_survives_a_link_that_was_taken_away(host: StoreHost, monkeypatch: pytest.MonkeyPatch) -> None:
    path = working_env(host.directory / "ml-env", host)

    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(host, "record_activation", killed)
        with pytest.raises(KilledError):
            run_module(BACKUP, {"path": str(path)}, host)
    path.unlink()
    assert BACKUP.undo(host.steps[-1].undo, host) == f"put {path} back where it was"
    assert python(path / "bin" / "python", "import six; print(six.__version__)") == "1.16.0"


def test_what_cannot_be_adopted_is_said_in_the_plan(host: StoreHost) -> None:
    with pytest.raises(StoreError, match="is not a venv"):
        plan_module(BACKUP, {"path": str(host.directory / "nowhere")}, host.planning())


# ---- activate


def test_switching_and_switching_back(host: StoreHost) -> None:
    link = adopted(host)
    number = build_candidate(host)["generation"]
    host.steps.clear()
    log = host.directory / "restarts"
    restart = [sys.executable, "-c", f"open({str(log)!r}, 'a').write('restarted ')"]
    arguments = {"generation": number, "restart": restart}
    foreseen = planned_change(ACTIVATE, arguments, host.planning())
    assert [(one.before, one.after) for one in foreseen.differences] == [
        (str(host.store.venv(1)), str(host.store.venv(number)))
    ]
    started = time.time()
    values = dict(run_module(ACTIVATE, arguments, host).values)
    restarted_at = values.pop("service_restarted_at")
    assert isinstance(restarted_at, float)
    assert started <= restarted_at <= time.time()
    assert values == {"generation": number, "previous": 1, "link": str(link)}
    assert python(link / "bin" / "python", "import six; print(six.__version__)") == "1.17.0"
    (by_hand, *_) = host.steps[-1].by_hand
    assert undo_steps(ACTIVATE, host) == ["switched back to generation 1"]
    assert python(link / "bin" / "python", "import six; print(six.__version__)") == "1.16.0"
    assert log.read_text().startswith("restarted restarted")
    assert host.activations == [(None, 1), (1, number), (number, 1)]
    run_module(ACTIVATE, {"generation": number}, host)
    subprocess.run(by_hand.split(), check=True)
    assert host.store.active() == 1


def test_a_failing_restart_is_a_failed_task(host: StoreHost) -> None:
    adopted(host)
    number = build_candidate(host)["generation"]
    host.steps.clear()
    with pytest.raises(TaskError, match="the restart failed: exit code 3"):
        run_module(ACTIVATE, {"generation": number, "restart": [sys.executable, "-c", "raise SystemExit(3)"]}, host)
    host.steps[-1].undo = {**host.steps[-1].undo, "restart": []}
    assert undo_steps(ACTIVATE, host) == ["switched back to generation 1"]


def test_what_is_not_complete_or_was_changed_is_not_activated(host: StoreHost) -> None:
    adopted(host)
    number = build_candidate(host)["generation"]
    with pytest.raises(TaskError, match=r"no generation 7 \(there are: 1, 2\)"):
        plan_module(ACTIVATE, {"generation": 7}, host)
    generation = host.store.generation(number)
    host.store.write_generation(generation.with_state("building"))
    with pytest.raises(TaskError, match="is not complete"):
        plan_module(ACTIVATE, {"generation": number}, host)
    host.store.write_generation(generation)
    next(host.store.venv(number).rglob("six.py")).unlink()
    with pytest.raises(TaskError, match=r"six\.py is missing: it is not activated"):
        run_module(ACTIVATE, {"generation": number}, host)
    assert host.store.active() == 1


# ---- killed for real

KILLED = """
import os, signal, sys
from pathlib import Path
from crossgrade.store import activation, atomic, layout, manifest
from crossgrade.modules import load_module
from tests.support.module_host import run_module
from tests.support.store_host import StoreHost
import json

directory, module, arguments, point = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
host = StoreHost(directory)
record = directory / "undo.json"
calls = 0

def trace(frame, event, argument):
    global calls
    if event == "call" and host.steps and frame.f_code.co_filename.startswith(os.path.dirname(layout.__file__)):
        calls += 1
        record.write_text(json.dumps(dict(host.steps[0].undo)))
        if calls == point:
            os.kill(os.getpid(), signal.SIGKILL)

sys.setprofile(trace)
run_module(load_module(module), arguments, host)
"""


def run_and_kill(host: ModuleHost, module: str, arguments: Mapping[str, Any], point: int) -> bool:
    """Run the module in a process that gets SIGKILL at this call into the store; False when it ended before."""
    argv = [sys.executable, "-c", KILLED, str(host.directory), module, json.dumps(arguments), str(point)]
    root = Path(__file__).resolve().parents[2]
    completed = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=False)
    assert completed.returncode in (0, -signal.SIGKILL), completed.stderr
    return completed.returncode != 0


def undo_of_killed(host: ModuleHost) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((host.directory / "undo.json").read_text())
    return value


STRIDES = [pytest.param(1, marks=pytest.mark.faults), 6]


@pytest.mark.parametrize("stride", STRIDES)
def test_sigkill_at_any_call_of_an_adoption(host: StoreHost, stride: int) -> None:
    """Whatever call into the store is the last: the environment is then where it was, or the backup is whole."""
    path = working_env(host.directory / "ml-env", host)
    before = snapshot(path)
    step = 1
    outcomes: set[bool] = set()
    while run_and_kill(host, "venv_backup", {"path": str(path)}, step):
        BACKUP.undo(undo_of_killed(host), host)
        BACKUP.undo(undo_of_killed(host), host)
        complete = path.is_symlink()
        outcomes.add(complete)
        assert snapshot(path.resolve()) == before
        if complete:
            assert host.store.active() == 1
            assert host.store.generation(1).state == "ready"
            put_back(host.store, path)
        assert host.store.generations() == []
        # near the start every `stride`th call, then fewer: most calls are one for each file of the manifest
        step += stride * (1 + step // 20)
    assert False in outcomes
    assert stride > 1 or True in outcomes
    assert host.store.active() == 1


def put_back(store: Store, path: Path) -> None:
    venv = store.venv(1)
    path.unlink()
    venv.rename(path)
    shutil.rmtree(store.folder(1))


@pytest.mark.parametrize("stride", STRIDES)
def test_sigkill_at_any_call_of_an_activation(host: StoreHost, stride: int) -> None:
    link = adopted(host)
    number = build_candidate(host)["generation"]
    host.store.write_generation(host.store.generation(number).with_state("rejected"))
    step = 1
    while run_and_kill(host, "activate", {"generation": number}, step):
        assert host.store.active() in (1, number), "the link leads somewhere at every instant"
        assert (link / "bin" / "python").exists()
        ACTIVATE.undo(undo_of_killed(host), host)
        assert host.store.active() == 1
        assert host.store.generation(number).state == "rejected"
        step += stride
    assert step > 10
    assert host.store.active() == number
