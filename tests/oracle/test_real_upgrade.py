"""The real upgrade, from a clean store: SGLang 0.5.9 on CUDA 12.8 to 0.5.23 on CUDA 13, all but the GPU.

It needs about 16 GB of disk beside the downloads (21 GB, which are kept and go on where they stopped), and 15 to 90
minutes. Everything is real: the wheels, the resolver, nvcc 13, the compiled kernels. There is no GPU, so what needs
one says `not run`, and the playbook's `without_gpu: warn` lets the run go on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.oracle.test_real_projects import EXTENSION, PYPROJECT, SETUP
from tests.oracle.test_real_stacks import KEPT, uv
from tests.support.commands import CHECKOUT
from tests.support.toolkits import uv_program
from tests.support.walkthrough import Walkthrough

from crossgrade.commands.benchmarking import machine_name
from crossgrade.inspect.device_code import read_device_code
from crossgrade.inspect.elf import FileSource, parse_elf

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(5400)]

NEEDED_BYTES = 16_000_000_000
WORKING = ("sglang==0.5.9", "flashinfer-cubin==0.6.3")
COMMUNICATORS = "sglang/srt/distributed/device_communicators"
# Two patches as people made them on such a server. Torch's symmetric memory raised `KeyError: 12` there: the table knew
# compute capability 9 and 10 only. Custom allreduce turned itself off on more than two GPUs without NVLink.
APPLIES = f"{COMMUNICATORS}/all_reduce_utils.py"
CONFLICTS = f"{COMMUNICATORS}/custom_all_reduce.py"
INTRODUCTION = """\
# A walk through the real upgrade

Made by `pytest -m slow tests/oracle/test_real_upgrade.py` on a machine without a GPU and without an NVIDIA driver: what
follows is what the commands printed (shortened where `[...]` stands, and with the folder of the run called `/srv`).
Everything but the GPU is real: SGLang 0.5.9 on CUDA 12.8 from PyPI, two patches that somebody made to it, a CUDA
extension, the resolver, nvcc 13 from wheels, the compiled kernels. What needs a GPU says `not run`, which stops an
upgrade unless the playbook says otherwise, as these settings do (`without_gpu: warn`).
"""
ROW_OF_12 = "    12: {\n        2: 64 * MiB,\n        8: 128 * MiB,\n    },\n}\n"


def site_packages(venv: Path) -> Path:
    return next(venv.glob("lib/python3*/site-packages"))


def edit(path: Path, old: str, new: str) -> None:
    """As an editor saves: a new file in place of the old one, which uv's cache shares."""
    text = path.read_text()
    assert text.count(old) == 1, f"{path}: {text.count(old)} times {old!r}"
    path.unlink()
    path.write_text(text.replace(old, new))


def digests(root: Path) -> dict[str, str]:
    """Every file and link below `root` with its kind, mode and SHA-256: nothing of crossgrade's has a part in it."""

    def digest(path: Path) -> str:
        if path.is_symlink():
            return f"link to {path.readlink()}"
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
        return f"{path.stat().st_mode:o} {digest.hexdigest()}"

    paths = [Path(folder) / name for folder, folders, names in os.walk(root) for name in (*names, *folders)]
    paths = sorted(path for path in paths if path.is_symlink() or not path.is_dir())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return {str(path.relative_to(root)): found for path, found in zip(paths, pool.map(digest, paths), strict=True)}


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder beside uv's cache: on one filesystem, the working environment shares its files with it."""
    KEPT.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(KEPT).free
    if free < NEEDED_BYTES:
        pytest.fail(
            f"the run needs {NEEDED_BYTES / 1e9:.0f} GB on the filesystem of {KEPT}, where {free / 1e9:.0f} GB are free"
        )
    folder = Path(tempfile.mkdtemp(prefix="upgrade-", dir=KEPT))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def walk(place: Path) -> Walkthrough:
    environment = {"UV_CACHE_DIR": str(KEPT / "downloads"), "HOME": str(place / "home"), "NO_COLOR": "1"}
    return Walkthrough(place, KEPT / "walkthrough.md", environment, {str(place): "/srv", str(CHECKOUT) + "/": ""})


@pytest.fixture
def working(place: Path) -> Path:
    """The environment that works, on CUDA 12.8, with both patches."""
    venv = place / "ml-env"
    subprocess.run([uv_program(), "venv", "--quiet", "--python", sys.executable, str(venv)], check=True)
    uv(venv, "install", "--prerelease=allow", *WORKING)
    site = site_packages(venv)
    edit(site / APPLIES, "    },\n}\n", f"    }},\n{ROW_OF_12}")
    edit(site / CONFLICTS, "if world_size > 2 and not full_nvlink:", "if world_size > 8 and not full_nvlink:")
    return venv


def test_from_cuda_12_8_to_13_and_back(place: Path, walk: Walkthrough, working: Path) -> None:
    before = digests(working)
    extension = place / "twice"
    extension.mkdir()
    for name, text in (("twice.cu", EXTENSION), ("setup.py", SETUP), ("pyproject.toml", PYPROJECT)):
        (extension / name).write_text(text)
    settings = place / "server.yml"
    settings.write_text(json.dumps({
        "working_env": str(working),
        "crossgrade_root": str(place / "crossgrade"),
        "without_gpu": "warn",
        "extensions": [str(extension)],
        "flashinfer_modules": ["norm"],
        "serving": {
            "command": ["{python}", "-m", "sglang.launch_server", "--model-path", "/models/m", "--tp", "8",
                        "--cuda-graph-max-bs", "128", "--host", "{host}", "--port", "{port}"],
            "health": "/health_generate", "start_timeout": 1800, "stop_grace": 60, "needs_gpu": True, "environment": {},
        },
    }, indent=1))  # fmt: skip
    options = ("--playbook", str(CHECKOUT / "playbooks" / "cuda13_sm120.yml"), "-e", f"@{settings}")

    walk.tell(f"{INTRODUCTION}\nThe machine: {machine_name()}.\n")
    walk.tell("## The settings\n\n```json\n" + settings.read_text() + "\n```\n\n## A plan that names a conflict")
    refused = walk.crossgrade("plan", *options)
    assert refused.code == 1, refused.stdout
    assert CONFLICTS in refused.stdout
    assert "if world_size > 8 and not full_nvlink:" in refused.stdout

    walk.tell(
        "One of the two local patches does not apply: SGLang has moved that code. The other applies, and is carried. "
        "Nothing was changed. Whoever can do without the patch says so:\n\n## The plan"
    )
    dropped = ("-e", json.dumps({"ignore_patches": [CONFLICTS]}))
    planned = walk.crossgrade("plan", *options, *dropped, "--out", str(place / "plan.json"))
    assert planned.code == 0, planned.stdout
    assert "1 local change carried" in planned.stdout
    assert digests(working) == before
    assert not (place / "crossgrade").exists()

    walk.tell("Every task, and what it will do; the changes are listed with `--diff`.\n\n## The upgrade")
    upgraded = walk.crossgrade("upgrade", "--yes", *options, *dropped, head=4, tail=105)
    assert upgraded.code == 0, upgraded.stdout
    site = site_packages(working)
    assert working.is_symlink()
    assert ROW_OF_12 in (site / APPLIES).read_text()
    assert "world_size > 8" not in (site / CONFLICTS).read_text()
    not_run = upgraded.stdout.partition("let pass by `on_not_run: warn`")[2].splitlines()[0]
    for gate in ("can take the target", "everything imports", "exchange data", "starts and answers", "no slower"):
        assert gate in not_run
    assert device_code(next(site.glob("twice*.so"))) == {"sm_120a"}, "torch knows no 12.0f"
    caches = place / "crossgrade" / "store" / "generations" / "2" / "caches"
    assert device_code(next(caches.rglob("norm.so"))) == {"sm_120f"}

    walk.tell("The old environment is generation 1, byte for byte; nothing was built twice:\n\n## Again")
    again = walk.crossgrade("upgrade", "--yes", *options, *dropped, head=1, tail=12)
    assert "changed=0" in again.stdout

    walk.tell("## What is there, and the way back")
    walk.crossgrade("status", "--root", str(place / "crossgrade"))
    walk.crossgrade("diff", "1", "2", "--root", str(place / "crossgrade"), head=24, tail=24)
    returned = walk.crossgrade("rollback", "--root", str(place / "crossgrade"))
    assert returned.code == 0
    verified = walk.crossgrade("verify", "--full", "--root", str(place / "crossgrade"))
    assert verified.code == 0
    assert digests(working.resolve()) == before


def device_code(library: Path) -> set[str]:
    """The architectures that a library holds code for."""
    with FileSource(str(library)) as code:
        device = read_device_code(code, parse_elf(code))
    assert device is not None
    return set(device.by_name)
