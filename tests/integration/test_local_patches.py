"""Local changes of an environment, carried into the candidate or refused: real venvs, real wheels, real merges."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.module_host import plan_module, run_module
from tests.support.store_host import StoreHost, planned_change, undo_steps
from tests.support.tiny_wheels import tiny_venv, tiny_wheel

from crossgrade.errors import TaskError
from crossgrade.modules import activate, python_env, venv_backup
from crossgrade.modules.contract import Change, Unchanged
from crossgrade.store.manifest import compare, read_manifest

ENV = python_env.MODULE
TEN = [f"line {number} = {number}\n" for number in range(10)]


def text(**lines: str) -> bytes:
    """Ten lines; `at3="x"` puts another in the place of the fourth."""
    return "".join(f"{lines[f'at{n}']}\n" if f"at{n}" in lines else line for n, line in enumerate(TEN)).encode()


OLD: dict[str, bytes] = {
    "engine/__init__.py": b"",
    "engine/applies.py": text(),
    "engine/conflicts.py": text(),
    "engine/upstream.py": text(),
    "engine/removed.py": text(),
    "engine/gone.py": text(),
    "engine/deep/kernel.cu": text(),
}
NEW: dict[str, bytes] = {
    **{path: content for path, content in OLD.items() if path != "engine/gone.py"},
    "engine/applies.py": text(at8="new = 8"),
    "engine/conflicts.py": text(at2="new = 2"),
    "engine/upstream.py": text(at1="fixed = 1", at8="new = 8"),
}


@pytest.fixture
def host(tmp_path: Path) -> StoreHost:
    environment = {**os.environ, "UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "cache")}
    return StoreHost(tmp_path, environment=environment)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with two versions of one dist, and of another that stays as it is."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    tiny_wheel(folder, "cg-engine", "1.0", OLD)
    tiny_wheel(folder, "cg-engine", "2.0", NEW)
    tiny_wheel(folder, "cg-other", "1.0", {"other/__init__.py": b"", "other/same.py": text()})
    return folder


@pytest.fixture
def site(host: StoreHost, wheels: Path) -> Path:
    """site-packages of the adopted environment."""
    venv = tiny_venv(host.directory / "ml-env", *sorted(wheels.glob("*-1.0-*.whl")))
    run_module(venv_backup.MODULE, {"path": str(venv)}, host)
    host.steps.clear()
    return next(host.store.venv(1).glob("lib/python3*/site-packages"))


def arguments(wheels: Path, **more: Any) -> dict[str, Any]:
    return {"requirements": ["cg-engine==2.0", "cg-other==1.0"], "find_links": [str(wheels)], **more}


def patch(site: Path, files: Mapping[str, bytes | None]) -> None:
    for path, content in files.items():
        place = site / path
        place.unlink(missing_ok=True)
        if content is not None:
            place.write_bytes(content)


FITS = {
    "engine/applies.py": text(at1="mine = 1"),
    "engine/upstream.py": text(at1="fixed = 1"),
    "engine/removed.py": None,
    "engine/added.py": b"MINE = True\n",
    "engine/deep/kernel.cu": text(at5="mine = 5"),
    "other/same.py": text(at5="mine = 5"),
}


def test_an_environment_without_changes_needs_no_word(host: StoreHost, wheels: Path, site: Path) -> None:  # noqa: ARG001
    assert run_module(ENV, arguments(wheels), host).values["generation"] == 2


def test_the_default_refuses_and_names_what_would_be_lost(host: StoreHost, wheels: Path, site: Path) -> None:
    patch(site, FITS)
    with pytest.raises(TaskError) as refused:
        plan_module(ENV, arguments(wheels), host.planning())
    said = str(refused.value)
    assert "cg-engine 1.0: engine/added.py (added), engine/applies.py (changed)" in said
    assert "cg-other 1.0: other/same.py (changed)" in said
    assert "local_patches: carry" in said
    assert host.started == []  # nothing was fetched for it


def test_changes_that_fit_are_in_the_candidate(host: StoreHost, wheels: Path, site: Path) -> None:
    patch(site, FITS)
    carry = arguments(wheels, local_patches="carry")
    planned = plan_module(ENV, carry, host.planning())
    assert isinstance(planned, Change)
    assert "6 local changes carried" in planned.summary
    told = {one.subject.rpartition(" ")[2]: (one.before, one.after) for one in planned.differences}
    merged = text(at1="mine = 1", at8="new = 8").decode()
    assert told["engine/applies.py"] == (NEW["engine/applies.py"].decode(), merged)
    assert told["engine/upstream.py"] == ("", "the new version contains the change")

    values = run_module(ENV, carry, host).values
    venv = Path(values["path"])
    made = next(venv.glob("lib/python3*/site-packages"))
    expected: dict[str, bytes | None] = {
        **NEW, **FITS, "engine/applies.py": merged.encode(), "engine/upstream.py": NEW["engine/upstream.py"],
    }  # fmt: skip
    found = {path: (made / path).read_bytes() if (made / path).exists() else None for path in expected}
    assert found == expected
    said = subprocess.run(
        [venv / "bin/python", "-B", "-v", "-c", "import engine.added as e; assert e.MINE"],
        capture_output=True,
        text=True,
    ).stderr
    assert "code object from '" + str(made / "engine/added.py") not in said  # its bytecode is there and fits
    assert "matches " + str(made / "engine/added.py") in said
    # the originals in uv's cache are as they were
    for cached in Path(host.environment["UV_CACHE_DIR"]).rglob("engine/applies.py"):
        assert cached.read_bytes() in (OLD["engine/applies.py"], NEW["engine/applies.py"])


def test_the_carried_changes_are_part_of_the_generation(host: StoreHost, wheels: Path, site: Path) -> None:
    patch(site, {"engine/applies.py": text(at1="mine = 1")})
    carry = arguments(wheels, local_patches="carry")
    run_module(ENV, carry, host)
    manifest = read_manifest(host.store.manifest_path(2))
    assert compare(manifest, host.store.venv(2), full=True).identical
    assert isinstance(plan_module(ENV, carry, host), Unchanged)

    patch(site, {"engine/applies.py": text(at0="mine = 0")})  # another change: another candidate
    planned = planned_change(ENV, carry, host)
    assert planned.values["generation"] == 3
    run_module(ENV, carry, host)
    run_module(activate.MODULE, {"generation": 3}, host)
    # the changes are in the active generation now: nothing is left to carry, nothing is lost
    assert isinstance(plan_module(ENV, carry, host), Unchanged)
    with pytest.raises(TaskError, match=r"engine/applies\.py \(changed\)"):
        plan_module(ENV, arguments(wheels), host)


def test_a_change_that_does_not_apply_is_told_with_its_hunk_before_anything_is_built(
    host: StoreHost, wheels: Path, site: Path
) -> None:
    patch(site, {**FITS, "engine/conflicts.py": text(at2="mine = 2"), "engine/gone.py": text(at2="mine = 2")})
    carry = arguments(wheels, local_patches="carry")
    with pytest.raises(TaskError) as refused:
        plan_module(ENV, carry, host.planning())
    said = str(refused.value)
    assert "cg-engine 1.0: engine/conflicts.py: 1 of its places changed in both" in said
    hunk = ["the local change:", "-line 2 = 2", "+mine = 2", "the new version has there:", " new = 2"]
    assert "\n".join(f"        {line}" for line in hunk) in said
    assert "engine/gone.py: the new version has no such file" in said
    assert "engine/applies.py" not in said
    assert not host.store.folder(2).exists()

    left = run_module(ENV, {**carry, "ignore_patches": ["engine/conflicts.py", "*/gone.py"]}, host)
    made = next(Path(left.values["path"]).glob("lib/python3*/site-packages"))
    assert (made / "engine/conflicts.py").read_bytes() == NEW["engine/conflicts.py"]
    assert (made / "engine/added.py").read_bytes() == FITS["engine/added.py"]


def test_drop_builds_without_them(host: StoreHost, wheels: Path, site: Path) -> None:
    patch(site, FITS)
    values = run_module(ENV, arguments(wheels, local_patches="drop"), host).values
    made = next(Path(values["path"]).glob("lib/python3*/site-packages"))
    assert {path: (made / path).read_bytes() for path in NEW} == NEW
    assert not (made / "engine/added.py").exists()


def test_an_original_that_is_not_to_be_had_is_said(host: StoreHost, wheels: Path, site: Path) -> None:
    patch(site, {"engine/applies.py": text(at1="mine = 1")})
    (wheels / "cg_engine-1.0-py3-none-any.whl").unlink()
    tiny_wheel(wheels, "cg-engine", "1.0", {**OLD, "engine/applies.py": text(at4="another build")})
    with pytest.raises(
        TaskError, match=r"engine/applies\.py: the wheel of cg-engine 1\.0 that was found is not the one"
    ):
        plan_module(ENV, arguments(wheels, local_patches="carry"), host.planning())
    (wheels / "cg_engine-1.0-py3-none-any.whl").unlink()
    with pytest.raises(TaskError, match=r"engine/applies\.py: the original is not to be had: uv could not lay out"):
        plan_module(ENV, arguments(wheels, local_patches="carry"), host.planning())


def test_a_clone_keeps_what_it_does_not_replace(host: StoreHost, wheels: Path, site: Path) -> None:
    patch(site, {"other/same.py": text(at5="mine = 5")})
    clone = {**arguments(wheels, base="clone"), "requirements": ["cg-engine==2.0"]}
    values = run_module(ENV, clone, host).values
    made = next(Path(values["path"]).glob("lib/python3*/site-packages"))
    assert (made / "other/same.py").read_bytes() == text(at5="mine = 5")
    assert undo_steps(ENV, host)

    patch(site, {"engine/applies.py": text(at1="mine = 1")})
    with pytest.raises(TaskError, match=r"engine/applies\.py \(changed\)\n  Say"):
        plan_module(ENV, clone, host.planning())
    values = run_module(ENV, {**clone, "local_patches": "carry"}, host).values
    made = next(Path(values["path"]).glob("lib/python3*/site-packages"))
    assert (made / "engine/applies.py").read_bytes() == text(at1="mine = 1", at8="new = 8")
    assert (made / "other/same.py").read_bytes() == text(at5="mine = 5")
