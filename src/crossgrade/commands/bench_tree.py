"""The tree that `bench store` measures on: a venv filled with real wheels from PyPI until it is as large as wanted.

Real, because what matters is how many files there are of which size, and how well they compress: the stack of an
SGLang server, about 60,000 files in 10 GB. It is made once and kept.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from crossgrade.errors import CrossgradeError
from crossgrade.store.scanning import count_files

CACHE = Path("~/.cache/crossgrade/bench")
# Installed in turn until the size is reached. Each step is a real part of such servers.
_STEPS: tuple[tuple[str, ...], ...] = (
    ("numpy", "scipy", "pandas", "scikit-learn", "sympy", "transformers"),
    ("nvidia-cublas==13.1.1.3",),
    ("torch", "torchvision", "torchaudio"),
    ("sgl-kernel",),
    ("flashinfer-python", "flashinfer-cubin"),
    ("--no-deps", "sglang"),
    ("--no-deps", "tensorrt-cu13-libs", "tensorrt-cu13-bindings"),
    ("--no-deps", "vllm"),
    ("--no-deps", "jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda12-pjrt"),
    ("--no-deps", "nvidia-cudnn-cu12", "nvidia-cublas-cu12", "nvidia-cusparse-cu12", "nvidia-nccl-cu12"),
)


def made_tree(folder: Path, gigabytes: float, say: Callable[[str], None]) -> Path:
    """A venv of about this many 10^9 bytes below the folder; one that was made before is taken again.

    Raises CrossgradeError when the wheels cannot be had, or when there are not enough of them.
    """
    venv = folder / f"venv-{gigabytes:g}gb"
    record = folder / f"{venv.name}.json"
    if record.exists():
        return venv
    uv = str(Path(sys.executable).parent / "uv")
    downloads = folder / "downloads"
    environment = {**os.environ, "VIRTUAL_ENV": str(venv), "UV_CACHE_DIR": str(downloads)}
    folder.mkdir(parents=True, exist_ok=True)
    _uv([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(venv)], environment)
    installed: list[str] = []
    size = 0
    for step in _STEPS:
        say(f"installing {' '.join(step)} into {venv}")
        _uv([uv, "pip", "install", "--quiet", "--no-build", *step], environment)
        installed += step
        size = count_files(venv)[1]
        if size >= 0.95e9 * gigabytes:
            break
    else:
        raise CrossgradeError(
            f"all the wheels that bench knows are {size / 1e9:.1f} GB", remedy="Ask for fewer --gigabytes."
        )
    shutil.rmtree(downloads)  # the files, which were hard links into it, then belong to the venv alone
    record.write_text(json.dumps({"installed": installed, "bytes": size}) + "\n", encoding="utf-8")
    return venv


def _uv(argv: Sequence[str], environment: dict[str, str]) -> None:
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise CrossgradeError(f"the tree to measure on cannot be made: {done.stderr.strip()}")
