"""pip through uv on real venvs with tiny wheels: a plan installs nothing, undo restores, the store is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.module_host import ModuleHost, plan_module, run_module, snapshot, undo_all
from tests.support.tiny_wheels import tiny_venv, tiny_wheel

from crossgrade.errors import TaskError
from crossgrade.modules.contract import Change, Unchanged
from crossgrade.modules.dists import versions
from crossgrade.modules.pip import MODULE, joined
from crossgrade.modules.pip_environment import parse_changes, translated


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version in ("1.0", "2.0"):
        tiny_wheel(folder, "alpha", version, requires=["beta"])
        tiny_wheel(folder, "beta", version)
    tiny_wheel(folder, "gamma", "1.0", requires=["alpha>=2"])
    return folder


@pytest.fixture
def host(tmp_path: Path, wheels: Path) -> ModuleHost:
    environment = {**os.environ, "UV_OFFLINE": "1", "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(wheels)}
    return ModuleHost(tmp_path, environment={**environment, "UV_CACHE_DIR": str(tmp_path / "cache")})


@pytest.fixture
def venv(tmp_path: Path, wheels: Path) -> Path:
    return tiny_venv(tmp_path / "venv", wheels / "alpha-1.0-py3-none-any.whl", wheels / "beta-1.0-py3-none-any.whl")


def without_cache(found: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    return {name: kept for name, kept in found.items() if not name.startswith(("cache", "store"))}


def test_a_plan_says_all_that_changes_and_changes_nothing(tmp_path: Path, host: ModuleHost, venv: Path) -> None:
    before = snapshot(tmp_path)
    planned = plan_module(MODULE, {"name": "gamma", "virtualenv": str(venv)}, host.planning())
    assert isinstance(planned, Change)
    assert {(one.subject, one.before, one.after) for one in planned.differences} == {
        ("alpha", "1.0", "2.0"),
        ("gamma", "", "1.0"),
    }
    assert without_cache(snapshot(tmp_path)) == without_cache(before)


@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        ({"name": "gamma"}, {"alpha": "2.0", "beta": "1.0", "gamma": "1.0"}),
        ({"name": "alpha", "state": "latest"}, {"alpha": "2.0", "beta": "1.0"}),
        ({"name": "alpha", "version": "2.0"}, {"alpha": "2.0", "beta": "1.0"}),
        ({"name": ["alpha>=1", "<3", "beta==2.0"]}, {"alpha": "1.0", "beta": "2.0"}),
        ({"name": "alpha", "state": "forcereinstall"}, {"alpha": "2.0", "beta": "2.0"}),
        ({"name": ["alpha", "nope"], "state": "absent"}, {"beta": "1.0"}),
        (
            {"requirements": "{wheels}/r.txt", "extra_args": "--no-deps --disable-pip-version-check"},
            {"alpha": "2.0", "beta": "1.0"},
        ),
    ],
)
def test_changes_and_back(
    host: ModuleHost, venv: Path, wheels: Path, arguments: dict[str, Any], after: dict[str, str]
) -> None:
    (wheels / "r.txt").write_text("alpha==2.0\n")
    arguments = {
        name: str(value).format(wheels=wheels) if name == "requirements" else value for name, value in arguments.items()
    }
    outcome = run_module(MODULE, {**arguments, "virtualenv": str(venv)}, host)
    assert outcome.changed is not False
    assert versions(venv) == after
    if arguments.get("state") != "forcereinstall":
        assert isinstance(plan_module(MODULE, {**arguments, "virtualenv": str(venv)}, host), Unchanged)
    undo_all(MODULE, host)
    assert versions(venv) == {"alpha": "1.0", "beta": "1.0"}
    assert undo_all(MODULE, host) == [""]


def test_a_missing_venv_is_made_and_removed_again(tmp_path: Path, host: ModuleHost) -> None:
    arguments = {"name": "gamma", "virtualenv": str(tmp_path / "new"), "virtualenv_python": sys.executable}
    planning = host.planning()
    planned = plan_module(MODULE, arguments, planning)
    assert isinstance(planned, Change)
    assert {one.subject for one in planned.differences} == {"alpha", "beta", "gamma"}
    assert isinstance(plan_module(MODULE, {**arguments, "name": "beta"}, planning), Unchanged)  # the first brings it
    assert not (tmp_path / "new").exists()
    run_module(MODULE, {**arguments, "umask": "0077"}, host)
    assert versions(tmp_path / "new") == {"alpha": "2.0", "beta": "2.0", "gamma": "1.0"}
    file = next((tmp_path / "new").rglob("gamma.py"))
    assert file.stat().st_mode & 0o077 == 0
    undo_all(MODULE, host)
    assert not (tmp_path / "new").exists()


def test_a_pip_leads_to_its_environment(host: ModuleHost, venv: Path) -> None:
    pip = venv / "bin" / "pip3"
    pip.write_text(f"#!{venv}/bin/python\n")
    pip.chmod(0o755)
    run_module(MODULE, {"name": "beta==2.0", "executable": str(pip)}, host)
    assert versions(venv)["beta"] == "2.0"


def test_an_editable_project(tmp_path: Path, host: ModuleHost, venv: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text('[project]\nname = "delta"\nversion = "1.0"\n')
    planned = plan_module(MODULE, {"name": str(project), "editable": True, "virtualenv": str(venv)}, host.planning())
    assert isinstance(planned, Change)
    assert "--editable" in planned.values["cmd"]


def test_the_store_is_refused(tmp_path: Path, host: ModuleHost, venv: Path) -> None:
    inside = host.store.venv(3)
    inside.parent.mkdir(parents=True)
    venv.rename(inside)
    link = tmp_path / "active"
    link.symlink_to(inside)
    for place in (inside, link):
        with pytest.raises(TaskError, match="belongs to crossgrade's store") as raised:
            plan_module(MODULE, {"name": "beta", "virtualenv": str(place)}, host)
        assert "python_env" in raised.value.remedy
    with pytest.raises(TaskError, match="that crossgrade itself runs in"):
        plan_module(MODULE, {"name": "beta", "virtualenv": sys.prefix}, host)
    planning = host.planning()
    planning.predictions["path", str(tmp_path / "working")] = {"exists": True, "generation": 1}
    with pytest.raises(TaskError, match="belongs to crossgrade's store"):
        plan_module(MODULE, {"name": "beta", "virtualenv": str(tmp_path / "working")}, planning)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "nope"}, "cannot install nope"),
        ({"name": "--index-url=x"}, "is no requirement"),
        ({"name": ["a", "b"], "version": "1"}, "one `name`"),
        ({"name": "alpha>1", "version": "1"}, "says a version itself"),
        ({"name": "alpha", "extra_args": "--user"}, "--user is refused"),
        ({"name": "alpha", "extra_args": "--target=/x"}, "--target is refused"),
        ({"name": "alpha", "umask": "9"}, "octal"),
    ],
)
def test_what_is_refused(host: ModuleHost, venv: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(TaskError, match=words):
        plan_module(MODULE, {**arguments, "virtualenv": str(venv)}, host)


def test_a_kill_half_way_is_taken_back(host: ModuleHost, venv: Path) -> None:
    run_module(MODULE, {"name": "gamma", "virtualenv": str(venv)}, host)
    python = str(venv / "bin" / "python")
    uv = [os.environ.get("UV", str(Path(sys.executable).parent / "uv")), "--quiet", "--offline", "pip"]
    subprocess.run([*uv, "uninstall", "--python", python, "beta"], check=True)
    undo_all(MODULE, host)
    assert versions(venv) == {"alpha": "1.0", "beta": "1.0"}


def test_what_uv_says() -> None:
    said = "Would install\n - a==1.0\n + a==2.0\n + b==1.0 (from file:///b)\n - c==3\n ~ d==4\n + e @ file:///e\n"
    assert parse_changes(said) == (
        ("a", "1.0", "2.0"), ("b", "", "1.0"), ("c", "3", ""), ("d", "4", "4"), ("e", "", "file:///e"),
    )  # fmt: skip
    assert joined(["a>=1", "<2", "b", " !=3 "]) == ["a>=1,<2", "b,!=3"]
    assert translated(["--pre", "-I", "--no-input", "--trusted-host=h", "--no-deps"]) == [
        "--prerelease=allow", "--reinstall", "--allow-insecure-host=h", "--no-deps",
    ]  # fmt: skip
