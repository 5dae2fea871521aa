"""cuda_toolkit: link — the link that builds find a toolkit by, plain and under the real update-alternatives."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.module_host import ModuleHost, plan_module, run_module, undo_all
from tests.support.small_upgrade import make_small_upgrade
from tests.support.toolkits import toolkits

from crossgrade.errors import TaskError
from crossgrade.modules import cuda_toolkit
from crossgrade.modules.contract import Change, Unchanged
from crossgrade.modules.toolkit_link import keep_link, put_link_back, read_alternative

TOOLKIT = cuda_toolkit.MODULE
needs_alternatives = pytest.mark.skipif(shutil.which("update-alternatives") is None, reason="no update-alternatives")


def arguments_of(link: Path, **more: object) -> dict[str, object]:
    home = str(toolkits().cuda_13_0)
    return {"method": "existing", "version": "13.0", "path": home, "link": str(link), "prove_for": [], **more}


@pytest.fixture
def host(tmp_path: Path) -> ModuleHost:
    return ModuleHost(tmp_path)


@pytest.mark.parametrize("before", ["", "cuda-12.8", "/nowhere"])
def test_a_plain_link_is_turned_and_turned_back(host: ModuleHost, tmp_path: Path, before: str) -> None:
    link, home = tmp_path / "cuda", toolkits().cuda_13_0
    if before:
        link.symlink_to(before)
    planned = plan_module(TOOLKIT, arguments_of(link), host.planning())
    assert isinstance(planned, Change)
    assert [(each.before, each.after) for each in planned.differences] == [
        (f"link to {before}" if before else "absent", f"link to {home}")
    ]
    assert (os.readlink(link) if before else os.path.lexists(link)) == (before or False)  # noqa: PTH115 - as written
    assert run_module(TOOLKIT, arguments_of(link), host).values["link"] == str(link)
    assert link.readlink() == home
    assert isinstance(plan_module(TOOLKIT, arguments_of(link), host), Unchanged)
    undo_all(TOOLKIT, host)
    assert (os.readlink(link) if before else os.path.lexists(link)) == (before or False)  # noqa: PTH115 - as written


def test_a_directory_in_the_place_of_the_link_is_left_alone(host: ModuleHost, tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    with pytest.raises(TaskError, match="is a directory, no link: it is left alone"):
        plan_module(TOOLKIT, arguments_of(tmp_path / "cuda"), host)


@pytest.fixture
def alternatives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleHost:
    """A host whose update-alternatives is the machine's own, on folders of its own; cuda-12.8 is what it chose."""
    folders = {name: tmp_path / name for name in ("bin", "alternatives", "admin", "cuda-12.8", "cuda-12.6")}
    for folder in folders.values():
        folder.mkdir()
    program = folders["bin"] / "update-alternatives"
    options = f"--altdir {folders['alternatives']} --admindir {folders['admin']} --log /dev/null"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("update-alternatives")} {options} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folders['bin']}:{os.environ['PATH']}")
    for release, priority in (("12.6", "126"), ("12.8", "128")):
        choose(tmp_path, "--install", str(tmp_path / "cuda"), "cuda", str(tmp_path / f"cuda-{release}"), priority)
    return ModuleHost(tmp_path, environment=dict(os.environ))


def choose(folder: Path, *arguments: str) -> str:
    command = [str(folder / "bin" / "update-alternatives"), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@needs_alternatives
@pytest.mark.parametrize("automatic", [True, False])
def test_an_alternative_is_set_and_set_back(alternatives: ModuleHost, tmp_path: Path, automatic: bool) -> None:
    if not automatic:
        choose(tmp_path, "--set", "cuda", str(tmp_path / "cuda-12.6"))
    before, link = choose(tmp_path, "--query", "cuda"), tmp_path / "cuda"
    led_to = link.resolve()
    planned = plan_module(TOOLKIT, arguments_of(link), alternatives.planning())
    assert isinstance(planned, Change)
    assert choose(tmp_path, "--query", "cuda") == before
    run_module(TOOLKIT, arguments_of(link), alternatives)
    assert link.resolve() == toolkits().cuda_13_0.resolve()
    assert link.readlink().parent == tmp_path / "alternatives", "it stays in the hands of update-alternatives"
    undo_all(TOOLKIT, alternatives)
    assert choose(tmp_path, "--query", "cuda") == before
    assert link.resolve() == led_to
    assert set(undo_all(TOOLKIT, alternatives)) == {""}


@needs_alternatives
def test_a_package_that_turns_an_alternative_is_held_off(alternatives: ModuleHost, tmp_path: Path) -> None:
    """What NVIDIA's packages do: they register the new toolkit with a higher priority, and it is chosen."""
    before = choose(tmp_path, "--query", "cuda")
    kept = keep_link(tmp_path / "cuda", alternatives)
    (tmp_path / "cuda-13.0").mkdir()
    choose(tmp_path, "--install", str(tmp_path / "cuda"), "cuda", str(tmp_path / "cuda-13.0"), "130")
    assert (tmp_path / "cuda").resolve().name == "cuda-13.0"
    put_link_back(kept, alternatives)
    assert (tmp_path / "cuda").resolve().name == "cuda-12.8"
    choose(tmp_path, "--remove", "cuda", str(tmp_path / "cuda-13.0"))  # as the package's removal does
    undo_all(TOOLKIT, alternatives)
    assert choose(tmp_path, "--query", "cuda") == before, "it chooses by itself again"


def test_what_update_alternatives_says_is_read() -> None:
    said = (
        "Name: cuda\nLink: /usr/local/cuda\nStatus: auto\nBest: /usr/local/cuda-13.0\nValue: /usr/local/cuda-13.0\n\n"
        "Alternative: /usr/local/cuda-12.8\nPriority: 128\n\nAlternative: /usr/local/cuda-13.0\nPriority: 130\n"
    )
    found = read_alternative(said)
    assert (found.name, found.link, found.automatic, found.value) == (
        "cuda", "/usr/local/cuda", True, "/usr/local/cuda-13.0",
    )  # fmt: skip
    assert found.choices == ("/usr/local/cuda-12.8", "/usr/local/cuda-13.0")
    with pytest.raises(ValueError, match="says no Name"):
        read_alternative("nothing")


def test_a_run_that_fails_and_one_that_was_killed_turn_the_link_back(tmp_path: Path) -> None:
    upgrade = make_small_upgrade(tmp_path / "small")
    link = tmp_path / "cuda"
    link.symlink_to("cuda-12.8")
    task = f"""
    - name: Toolkit
      cuda_toolkit: {{version: "13.0", method: existing, path: {toolkits().cuda_13_0}, link: {link}, prove_for: []}}
"""
    text = upgrade.playbook.read_text()
    upgrade.playbook.write_text(text.replace("\n    - name: Candidate\n", f"{task}    - name: Candidate\n"))
    failed = upgrade.run("upgrade", "-e", '{"imports": ["missing"]}')
    assert failed.code == 2, failed.stdout + failed.stderr
    assert os.readlink(link) == "cuda-12.8"  # noqa: PTH115 - as it is written
    upgrade.run("upgrade", environment={"CROSSGRADE_KILL_AT": "intended:activate"})
    assert link.readlink() == toolkits().cuda_13_0, "it was killed when the link had turned"
    assert upgrade.run("rollback").code == 0
    assert os.readlink(link) == "cuda-12.8"  # noqa: PTH115 - as it is written
