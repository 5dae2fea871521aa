"""A mixed-up environment of real wheels, as people have them: every fault has its name in the plan.

It is made anew below ~/.cache/crossgrade/oracle, of files that uv's cache there shares: some 6 GB to look at, little
of it new. Before files are damaged by hand, ``uv pip check`` and Python itself say that the faults are real.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import crossgrade
from tests.support.mixed_environment import git, put, site_of
from tests.support.toolkits import uv_program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

KEPT = Path("~/.cache/crossgrade/oracle").expanduser()
STACK = ("torch==2.9.1",)
# Each without what it asks for, as people do it who want this one thing to be newer
ALONE = (
    "nvidia-nccl-cu13==2.28.9", "nvidia-cuda-runtime==13.0.96", "nvidia-cuda-nvrtc==13.0.88", "nvidia-cublas==13.1.0.3",
    "flashinfer-python==0.6.7.post2", "flashinfer-cubin==0.6.3", "sglang-kernel==0.4.10", "pandas==2.1.4",
    "numpy==2.2.6", "python-dateutil==2.9.0.post0", "pytz==2025.2", "six==1.17.0", "PyJWT==2.10.1",
)  # fmt: skip
LAST = ("jwt==1.3.1",)  # writes PyJWT's jwt/__init__.py
PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "sglang"
version = "0.5.9"
dependencies = {dependencies}

[tool.setuptools.packages.find]
include = ["sglang*"]
"""
PLAYBOOK = """
- hosts: localhost
  tasks:
    - name: Faults
      environment_check: {path: "{{ env }}"}
    - name: Back up
      venv_backup: {path: "{{ env }}"}
"""


def uv(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "UV_CACHE_DIR": str(KEPT / "downloads"), "UV_LINK_MODE": "hardlink"}
    environment.pop("VIRTUAL_ENV", None)
    return subprocess.run([uv_program(), *arguments], env=environment, check=check, capture_output=True, text=True)


def checkout_of_sglang(folder: Path) -> Path:
    """The sources of the wheel in a clone, one commit ahead of its upstream, with an edit that nobody has committed."""
    upstream, clone = folder / "upstream", folder / "sglang"
    uv("pip", "install", "--python", sys.executable, "--no-deps", "--target", upstream, "sglang==0.5.9")
    (info,) = upstream.glob("sglang-*.dist-info")
    asked = HeaderParser().parsestr((info / "METADATA").read_text()).get_all("Requires-Dist", [])
    dependencies = [text for text in asked if "extra" not in text]
    shutil.rmtree(info)
    shutil.rmtree(upstream / "bin", ignore_errors=True)
    put(upstream / "pyproject.toml", PYPROJECT.format(dependencies=json.dumps(dependencies)).encode())
    put(upstream / ".gitignore", b"*.egg-info\n__pycache__\n.lock\n")
    git(upstream, "init", "-q", "-b", "main")
    git(upstream, "add", "-A")
    git(upstream, "commit", "-q", "-m", "v0.5.9")
    git(folder, "clone", "-q", str(upstream), str(clone))
    version = clone / "sglang" / "version.py"
    put(clone / "sglang" / "ours.py", b"OURS = True\n")
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "our kernel settings")
    with version.open("a") as file:
        file.write("# not committed\n")
    return clone


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """A folder with the environment `ml-env`, as far as installers mix it up; its damage by hand comes in `mixed`."""
    root = KEPT / "mixed-up"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    venv = root / "ml-env"
    uv("venv", "--python", sys.executable, "--system-site-packages", venv)
    install = ("pip", "install", "--python", venv / "bin/python", "--no-config")
    uv(*install, *STACK)
    uv(*install, "--no-deps", *ALONE)
    uv(*install, "--no-deps", *LAST)
    uv(*install, "--no-deps", "--editable", checkout_of_sglang(root / "git"))
    yield root
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def checked(root: Path) -> str:
    """What uv says of the requirements, before it refuses to look at what is damaged."""
    said = uv("pip", "check", "--python", root / "ml-env/bin/python", check=False)
    assert said.returncode != 0
    return said.stderr + said.stdout


@pytest.fixture(scope="module")
def mixed(root: Path, checked: str) -> Path:  # noqa: ARG001 - uv is asked first
    """The environment with all its damage."""
    venv = root / "ml-env"
    site = site_of(venv)
    put(site / "torch/utils/_ours.py", b"OURS = True\n")
    edited = site / "torch/utils/collect_env.py"
    put(edited, edited.read_bytes() + b"# edited by hand\n")
    (site / "~orch").mkdir()
    put(site / "-rch-2.8.0.dist-info/METADATA", b"Metadata-Version: 2.1\nName: torch\nVersion: 2.8.0\n\n")
    next(site.glob("pytz-*.dist-info")).joinpath("RECORD").unlink()
    (site / "dateutil/rrule.py").unlink()
    put(site / "old-tool.pth", b"/nowhere/old-tool\n")
    (root / "my-modules").mkdir()
    put(site / "mine.pth", f"{root / 'my-modules'}\n".encode())
    old = site / "six-1.16.0.dist-info"
    put(old / "METADATA", b"Metadata-Version: 2.1\nName: six\nVersion: 1.16.0\n\n")
    put(old / "RECORD", b"six-1.16.0.dist-info/RECORD,,\n")
    return venv


EXPECTED = {
    "two-dists-one-path": {"nvidia-nccl-cu12 and nvidia-nccl-cu13", "jwt and pyjwt"},
    "cuda-majors-mixed": {"nvidia-cublas, nvidia-cuda-nvrtc, nvidia-cuda-runtime, nvidia-nccl-cu13"},
    "stale-flashinfer-cubin": {"flashinfer-cubin"},
    "version-pair": {"sglang", "sglang-kernel"},
    "numpy-mismatch": {"pandas"},
    "no-record": {"pytz"},
    "files-missing": {"python-dateutil"},
    "interrupted-install": {"-rch-2.8.0.dist-info and 1 more"},
    "two-versions": {"six"},
    "editable": {"sglang"},
    "edited-by-hand": {"torch"},
    "leftover-pth": {"old-tool.pth"},
    "import-leak": {"mine.pth", "include-system-site-packages in pyvenv.cfg", "PYTHONPATH of this shell"},
}


def plan(mixed: Path, *more: str) -> dict[str, Any]:
    """The verdict of the gate in a plan; what people read is printed."""
    playbook = mixed.parent / "play.yml"
    playbook.write_text(PLAYBOOK)
    arguments = ["--playbook", str(playbook), "--root", str(mixed.parent / "store"), "-e", f"env={mixed}", *more]
    began = time.monotonic()
    answer = crossgrade("plan", *arguments, "--json", environment={"PYTHONPATH": "/srv/modules"})
    seconds = time.monotonic() - began
    assert answer.code == 0, answer.stderr
    print(f"\ncrossgrade plan {' '.join(more)}: {seconds:.1f} s\n{answer.stderr}")  # noqa: T201 - the transcript
    (planned,) = [event["plan"] for event in answer.events if event["event"] == "plan"]
    verdict: dict[str, Any] = planned["tasks"][0]["verdict"]
    assert planned["tasks"][1]["action"] == "change", "the faults stop nothing"
    return verdict


def subjects(verdict: dict[str, Any]) -> dict[str, set[str]]:
    """What each fault is about, without versions."""
    found: dict[str, set[str]] = {}
    for finding in verdict["findings"]:
        if finding.get("fault") and finding["level"] == "warning":
            plain = re.sub(r"(?<=[a-z0-9]) \d[0-9a-z.]*(?=,| and |$)", "", finding["subject"])
            found.setdefault(finding["fault"], set()).add(plain)
    return found


def test_the_plan_tells_each_fault_by_its_name(mixed: Path, checked: str, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        verdict = plan(mixed)
    found = subjects(verdict)
    unmet = found.pop("requirement-unmet")
    assert found == EXPECTED
    # The requirements are those that uv finds unmet, dist by dist
    named = {name.lower() for name in re.findall(r"^The package `([^`]+)` requires", checked, re.MULTILINE)}
    assert named, checked
    assert unmet | found["version-pair"] | found["numpy-mismatch"] == named - {"six"}


def test_a_deep_plan_knows_what_native_files_were_built_against(
    mixed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        found = subjects(plan(mixed, "--deep"))
    assert {"pandas"} <= found["numpy-mismatch"]
    assert "sglang-kernel" in found["cuda-majors-mixed"]
    assert found["torch-mismatch"] == {"sglang-kernel"}
    assert {*EXPECTED} <= {*found}


def test_python_says_so_too(mixed: Path) -> None:
    program = str(mixed / "bin/python")
    pandas = subprocess.run([program, "-B", "-c", "import pandas"], capture_output=True, text=True, check=False)
    assert "numpy.dtype size changed" in pandas.stderr or "compiled using NumPy 1.x" in pandas.stderr, pandas.stderr
    code = "import importlib.metadata as m; print([d.version for d in m.distributions(name='six')])"
    six = subprocess.run([program, "-B", "-c", code], capture_output=True, text=True, check=True)
    assert sorted(json.loads(six.stdout.replace("'", '"')))[:2] == ["1.16.0", "1.17.0"]


def test_the_first_playbook_asks_for_them_and_the_plan_names_what_would_be_lost(mixed: Path) -> None:
    folder = mixed.parent / "first"
    made = crossgrade("init", folder, "--venv", mixed, "--force", "--json")
    assert made.code == 0, made.stderr
    (said,) = made.events
    assert {*EXPECTED} <= {fault["fault"] for fault in said["faults"]}
    serving = {"command": ["{python}"], "health": "/", "start_timeout": 1, "stop_grace": 1, "environment": {}}
    arguments = ["plan", "--playbook", str(folder / "playbook.yml"), "-i", str(folder / "inventory.yml")]
    arguments += ["-e", json.dumps({"serving": serving})]
    answer = crossgrade(*arguments, environment={"UV_CACHE_DIR": str(KEPT / "downloads")})
    told = answer.stdout + answer.stderr
    assert all(f"warning: {fault}: " in told for fault in EXPECTED), told
    assert answer.code == 1
    assert "The candidate environment" in told
    assert "local changes that the candidate would not have" in told
    assert re.search(
        r"sglang: the checkout \S+/git/sglang: on main, changed: 1, untracked: 0, commits of its own: 1", told
    )
    assert "torch 2.9.1: torch/utils/_ours.py (added), torch/utils/collect_env.py (changed)" in told
    assert not mixed.is_symlink()
