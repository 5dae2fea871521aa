"""extension_build and python_env, on a real build and real venvs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
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
)

from crossgrade.errors import StoreError, TaskError
from crossgrade.modules import activate, candidate, extension_build, python_env, venv_backup
from crossgrade.modules.contract import Change, LockRequest, Unchanged
from crossgrade.store.manifest import compare, read_manifest

BUILD = extension_build.MODULE
ENV = python_env.MODULE
ACTIVATE = activate.MODULE
BACKUP = venv_backup.MODULE
FOR_TWO = {"architectures": ["12.0", "9.0+PTX"], "environment": {"FLAVOUR": "a"}}


def write_source(place: Path, *, hook: str = "") -> Path:
    """A small project whose build writes down what it was told; `hook` is put at the start of its build hook."""
    (place / "tiny_engine").mkdir(parents=True)
    (place / "tiny_engine" / "__init__.py").write_text("ANSWER = 42\n")
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o755)
    (place / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling==1.33.0"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "tiny-engine"\nversion = "1.0"\n[tool.hatch.build.targets.wheel.hooks.custom]\n'
    )
    (place / "hatch_build.py").write_text(
        "import os, pathlib, sys\n"
        "from hatchling.builders.hooks.plugin.interface import BuildHookInterface\n\n\n"
        "class Hook(BuildHookInterface):\n"
        "    def initialize(self, version, build_data):\n"
        f"        {hook or 'pass'}\n"
        "        told = {k: os.environ.get(k, '') for k in ('MAX_JOBS', 'TORCH_CUDA_ARCH_LIST', 'FLAVOUR')}\n"
        "        told['FLASHINFER_CUDA_ARCH_LIST'] = os.environ.get('FLASHINFER_CUDA_ARCH_LIST', '')\n"
        "        pathlib.Path(self.root, 'tiny_engine', 'told.py').write_text(f'TOLD = {told!r}\\n')\n"
    )
    return place


@pytest.fixture
def host(tmp_path: Path) -> StoreHost:
    return StoreHost(tmp_path)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel folder of a store, built once by extension_build."""
    place = tmp_path_factory.mktemp("built")
    source = write_source(place / "source")
    host = StoreHost(place)
    arguments = {
        "source": str(source),
        "architectures": ["12.0", "9.0+PTX"],
        "jobs": 3,
        "environment": {"FLAVOUR": "a"},
    }
    before = snapshot(source)
    outcome = run_module(BUILD, arguments, host)
    assert snapshot(source) == before, "the source tree was written to"
    return Path(outcome.values["wheel"])


def with_wheel(host: ModuleHost, built: Path) -> str:
    """Give this host's store the wheel that was built for all tests."""
    place = host.store.wheel_folder(built.name)
    shutil.copytree(built, place)
    return str(place)


# ---- extension_build


def test_a_wheel_is_built_once_and_knows_what_it_was_told(built: Path, host: StoreHost) -> None:
    folder = Path(with_wheel(host, built))
    wheel = next(folder.glob("*.whl"))
    told = python(
        sys.executable, f"import sys; sys.path.insert(0, {str(wheel)!r}); import tiny_engine.told as t; print(t.TOLD)"
    )
    assert eval(told) == {  # noqa: S307 - the repr that the build wrote
        "MAX_JOBS": "3",
        "TORCH_CUDA_ARCH_LIST": "12.0;9.0+PTX",
        "FLASHINFER_CUDA_ARCH_LIST": "12.0 9.0",  # it would take +PTX for a part of the number
        "FLAVOUR": "a",
    }
    # the same tree at another place, for another store: the same key, so nothing is built
    source = write_source(host.directory / "elsewhere" / "checkout")
    arguments = {"source": str(source), **FOR_TWO}
    planned = plan_module(BUILD, arguments, host)
    assert isinstance(planned, Unchanged)
    assert planned.values["wheel"] == str(folder)
    assert host.started == []
    for change in (
        {"architectures": ["12.0"]},
        {"environment": {"FLAVOUR": "b"}},
        {"build_command": ["make", "wheel"]},
    ):
        assert isinstance(plan_module(BUILD, {**arguments, **change}, host), Change), change
    (source / "run.sh").chmod(0o644)
    assert isinstance(plan_module(BUILD, arguments, host), Change)
    (source / "run.sh").chmod(0o755)
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert isinstance(plan_module(BUILD, arguments, host), Unchanged)


def test_a_failing_build_shows_its_last_lines_and_leaves_nothing(host: StoreHost) -> None:
    source = write_source(host.directory / "source", hook="sys.exit('kernels.cu(7): error: no such thing')")
    with pytest.raises(TaskError, match=r"kernels\.cu\(7\): error: no such thing") as caught:
        run_module(BUILD, {"source": str(source)}, host)
    log = next(host.log_directory.glob("build-*.log"))
    assert str(log) in caught.value.remedy
    assert "kernels.cu(7)" in log.read_text()
    assert undo_steps(BUILD, host) == ["removed the half-made build"]
    assert list(host.store.temporary.iterdir()) == []
    assert list((host.store.root / "wheels").iterdir()) == []


def test_jobs_follow_cores_and_memory() -> None:
    assert extension_build.default_jobs(64, 64 << 30) == 16
    assert extension_build.default_jobs(2, 64 << 30) == 2
    assert extension_build.default_jobs(8, 1 << 30) == 1


def test_a_build_command_of_ones_own(host: StoreHost) -> None:
    source = write_source(host.directory / "source")
    command = [
        sys.executable,
        "-c",
        "import sys, shutil; shutil.copy(sys.argv[1], sys.argv[2])",
        "{source}/run.sh",
        "{out}",
    ]
    with pytest.raises(TaskError, match="was to leave one wheel and left none"):
        run_module(BUILD, {"source": str(source), "build_command": command}, host)


def test_wrong_places_are_named(host: StoreHost) -> None:
    with pytest.raises(TaskError, match="no source tree at"):
        plan_module(BUILD, {"source": "nowhere"}, host)
    source = write_source(host.directory / "source")
    ghost = host.store.toolkit("0" * 24) / "cuda_home"
    with pytest.raises(TaskError, match="no toolkit"):
        plan_module(BUILD, {"source": str(source), "cuda_home": str(ghost)}, host)


# ---- python_env: the candidate


def test_a_candidate_is_what_was_planned_and_is_found_again(built: Path, host: StoreHost) -> None:
    wheel = with_wheel(host, built)
    arguments = {"requirements": ["six==1.17.0"], "wheels": [wheel], "environment": {"MODE": "fast"}}
    foreseen = planned_change(ENV, arguments, host.planning())
    parts = f"build generation 1: 1 dist, 1 wheel built here, Python {sys.version.split()[0]}, from "
    assert foreseen.summary.startswith(parts)
    assert {(one.subject, one.after) for one in foreseen.differences} == {("six", "1.17.0"), ("tiny-engine", "1.0")}

    values = run_module(ENV, arguments, host).values
    assert values == foreseen.values
    assert (
        python(values["python"], "import six, tiny_engine; print(six.__version__, tiny_engine.ANSWER)") == "1.17.0 42"
    )
    generation = host.store.generation(1)
    assert generation.state == "ready"
    assert generation.environment == {"MODE": "fast"}
    assert generation.contents["dists"] == {"six": "1.17.0", "tiny-engine": "1.0"}
    assert generation.contents["wheels"] == [built.name]
    manifest = read_manifest(host.store.manifest_path(1))
    assert manifest.digest == generation.manifest
    venv = host.store.venv(1)
    assert compare(manifest, venv, full=True).identical
    assert not [path for path in venv.rglob("*.py") if path.stat().st_nlink > 1], "shares files with uv's cache"
    assert list(venv.rglob("six*.pyc")), "bytecode is compiled before the manifest is made"

    later = host.in_run("later")
    later.locks = {}
    assert isinstance(plan_module(ENV, arguments, later), Unchanged)
    assert (later.resolved, later.started) == ([], []), "a plan with nothing to do costs no network and no program"


def test_other_inputs_and_touched_files_make_a_new_generation(host: StoreHost) -> None:
    first = build_candidate(host)
    assert build_candidate(host)["generation"] == first["generation"]
    assert build_candidate(host, environment={"MODE": "slow"})["generation"] == 2
    package = next(Path(first["path"]).rglob("six.py"))
    package.write_text(package.read_text() + "# patched by hand\n")
    planned = planned_change(ENV, {"requirements": ["six==1.17.0"]}, host.planning())
    assert planned.values["generation"] == 3
    assert "generation 1 was modified: " in planned.summary
    assert "six.py is changed" in planned.summary
    assert build_candidate(host)["generation"] == 3
    extra = next(host.store.venv(3).rglob("six.py")).with_name("sitecustomize.py")
    extra.write_text("")
    assert (
        "sitecustomize.py is not from the build" in planned_change(ENV, {"requirements": ["six==1.17.0"]}, host).summary
    )


def test_predictions_carry_through_a_whole_plan(host: StoreHost) -> None:
    plan = host.planning()
    before = snapshot(host.directory)
    path = host.directory / "ml-env"
    plan_module(ENV, {"path": str(path), "requirements": ["six==1.16.0"]}, plan)
    for _ in range(2):  # the second time round all of it is foreseen
        plan_module(BACKUP, {"path": str(path)}, plan)
        change = plan_module(ENV, {"requirements": ["six==1.17.0"]}, plan)
        assert change.values["generation"] == 2
        if isinstance(change, Change):
            assert [(one.subject, one.before, one.after) for one in change.differences] == [("six", "1.16.0", "1.17.0")]
        last = plan_module(ACTIVATE, {"generation": 2}, plan)
    assert isinstance(last, Unchanged)
    assert snapshot(host.directory) == before, "a plan changes no file"


def test_a_failed_installation_leaves_no_generation(host: StoreHost) -> None:
    with pytest.raises(TaskError, match="no solution"):
        plan_module(ENV, {"requirements": ["six>999"]}, host)
    with pytest.raises(TaskError, match="is not a requirement"):
        plan_module(ENV, {"requirements": ["-r requirements.txt"]}, host)
    arguments = {"requirements": ["six==1.17.0"]}
    change = planned_change(ENV, arguments, host)
    lock = change.payload["recipe"].lock
    wrong = type(lock)(lock.text.replace("sha256:", "sha256:00")[: len(lock.text) + 2], lock.digest, lock.dists)
    host.locks = dict.fromkeys(host.locks, wrong)
    with pytest.raises(TaskError, match="uv could not install the lock"):
        run_module(ENV, arguments, host)
    assert host.store.generations()[0].state == "building"
    assert undo_steps(ENV, host) == ["removed the unfinished generation 1"]
    assert host.store.next_number() == 1


def test_a_wheel_that_was_tampered_with_is_not_installed(built: Path, host: StoreHost) -> None:
    folder = Path(with_wheel(host, built))
    with next(folder.glob("*.whl")).open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(StoreError, match="is not what was built"):
        build_candidate(host, wheels=[str(folder)])
    assert undo_steps(ENV, host) == ["removed the unfinished generation 1"]


def test_needs_that_are_not_met_are_told_and_left_to_the_gates(host: StoreHost) -> None:
    outcome = run_module(ENV, {"requirements": ["six==1.17.0"], "wheels": [str(wheel_with_needs(host))]}, host)
    assert "`needy` requires `left-out>=3`" in outcome.message


def wheel_with_needs(host: ModuleHost) -> Path:
    wheel = host.directory / "needy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("needy.py", "")
        info = "needy-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: needy\nVersion: 1.0\nRequires-Dist: left-out>=3\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", f"needy.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return wheel


def test_a_complete_generation_is_rejected_by_undo_and_used_again(host: StoreHost) -> None:
    adopted(host)
    number = build_candidate(host)["generation"]
    assert undo_steps(ENV, host) == ["marked generation 2 as rejected (kept for inspection)"]
    assert host.store.generation(number).state == "rejected"
    again = host.in_run("again")
    assert build_candidate(again)["generation"] == number
    assert host.store.generation(number).state == "rejected"
    run_module(ACTIVATE, {"generation": number}, again)
    assert host.store.generation(number).state == "ready"
    assert undo_steps(ACTIVATE, again) == ["switched back to generation 1"]
    assert host.store.generation(number).state == "rejected"


# ---- python_env: an ordinary venv


def test_an_ordinary_venv_is_made_once_and_never_changed(built: Path, host: StoreHost) -> None:
    path = host.directory / "env"
    arguments = {"path": str(path), "requirements": ["six==1.16.0"], "wheels": [with_wheel(host, built)]}
    values = run_module(ENV, arguments, host).values
    assert python(values["python"], "import six, tiny_engine; print(six.__version__)") == "1.16.0"
    host.resolved.clear()
    host.started.clear()
    before = snapshot(path)
    assert isinstance(plan_module(ENV, arguments, host), Unchanged)
    assert (host.resolved, host.started) == ([], [])
    for requirement, complaint in (("six>=1.17", "six 1.16.0 is installed"), ("idna", "idna is not installed")):
        with pytest.raises(TaskError, match=complaint):
            run_module(ENV, {**arguments, "requirements": [requirement]}, host)
    module = next(path.rglob("tiny_engine-*.dist-info")) / "RECORD"
    module.write_text(module.read_text().replace("tiny_engine/told.py,sha256=", "tiny_engine/told.py,sha256=x"))
    with pytest.raises(TaskError, match="from another build"):
        run_module(ENV, arguments, host)
    module.write_text(module.read_text().replace("sha256=x", "sha256="))
    assert {k: v for k, v in snapshot(path).items() if "RECORD" not in k} == {
        k: v for k, v in before.items() if "RECORD" not in k
    }
    assert undo_steps(ENV, host) == [f"removed {path}"]
    assert not path.exists()


def test_undo_never_removes_a_venv_that_was_there_before(host: StoreHost) -> None:
    path = host.directory / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    with pytest.raises(TaskError, match="is there and is not what the task asks for"):
        run_module(ENV, {"path": str(path), "requirements": ["six"]}, host)
    assert ENV.undo({"path": str(path), "run": host.run_id}, host) == ""
    assert (path / "pyvenv.cfg").is_file()
    with pytest.raises(TaskError, match="is not a venv"):
        run_module(ENV, {"path": str(host.playbook_directory), "requirements": ["six"]}, host)


@pytest.mark.parametrize("words", ["venv --python", "pip install", "pip check"])
@pytest.mark.parametrize("path", [None, "env"])
def test_a_kill_while_building_is_undone_whole(
    host: StoreHost, monkeypatch: pytest.MonkeyPatch, words: str, path: str | None
) -> None:
    arguments = {"requirements": ["six==1.17.0"], **({"path": str(host.directory / path)} if path else {})}
    plan_module(ENV, arguments, host)  # resolves
    run = host.run

    def killed(argv: Any, **options: Any) -> Any:
        if words in " ".join(argv):
            raise KilledError
        return run(argv, **options)

    monkeypatch.setattr(host, "run", killed)
    before = snapshot(host.directory)
    with pytest.raises(KilledError):
        run_module(ENV, arguments, host)
    undo_steps(ENV, host)
    shutil.rmtree(host.store.temporary)  # recovery empties it
    host.store.temporary.mkdir(mode=0o700)
    after = snapshot(host.directory)
    assert {name for name in after if "/runs/" not in name} == {name for name in before if "/runs/" not in name}


def test_a_leftover_of_a_killed_run_is_made_anew(host: StoreHost) -> None:
    path = host.directory / "env"
    (path / "lib").mkdir(parents=True)
    (path / ".crossgrade.json").write_text('{"run": "killed", "complete": false}')
    run_module(ENV, {"path": str(path), "requirements": ["six==1.16.0"]}, host)
    assert python(path / "bin" / "python", "import six; print(six.__version__)") == "1.16.0"


def test_identities_hold_no_path() -> None:
    request = LockRequest(("six",), "/usr/bin/python3")
    wanted = candidate.Wanted(request, (), "", {}, "3.11.7", "cpython-311")
    other = candidate.Wanted(LockRequest(("six",), "/opt/python"), (), "", {}, "3.11.7", "cpython-311")
    assert wanted.identity() == other.identity()
