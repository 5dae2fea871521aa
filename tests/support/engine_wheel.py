"""Building the rehearsal's native package with a real toolkit, and installing it in a real venv."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.toolkits import uv_program

ENGINE = Path(__file__).resolve().parents[2] / "playbooks" / "rehearsal" / "engine"


@dataclass(frozen=True)
class Installed:
    """One wheel and the venv that it was installed in."""

    wheel: Path
    venv: Path

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def package(self) -> Path:
        return next((self.venv / "lib").glob("python3*")) / "site-packages" / "rehearsal_engine"

    @property
    def extension(self) -> Path:
        return self.package / "_kernels.abi3.so"


def build(out: Path, home: Path | None, architectures: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """``uv build --wheel`` as extension_build runs it, in an environment without the machine's own CUDA."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA", "NVCC", "REHEARSAL"))}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    environment = {
        **kept,
        "PATH": "/usr/bin:/bin",
        "CROSSGRADE_CUDA_ARCHITECTURES": architectures,
        "MAX_JOBS": "2",
        **({"CUDA_HOME": str(home)} if home else {}),
        **extra,
    }
    command = [
        uv_program(),
        "build",
        "--wheel",
        "--python",
        sys.executable,
        "--out-dir",
        str(out),
        str(ENGINE),
    ]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def build_wheel(out: Path, home: Path, architectures: str, **extra: str) -> Path:
    done = build(out, home, architectures, **extra)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


def install(wheel: Path, venv: Path) -> Installed:
    subprocess.run([uv_program(), "venv", "--quiet", "--python", sys.executable, str(venv)], check=True)
    command = [
        uv_program(),
        "pip",
        "install",
        "--quiet",
        "--python",
        str(venv / "bin" / "python"),
        str(wheel),
    ]
    subprocess.run(command, check=True)
    return Installed(wheel, venv)
