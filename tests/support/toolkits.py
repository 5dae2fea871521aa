"""Real CUDA toolkits from PyPI for the tests, each as one directory that CUDA_HOME can name."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

REQUIREMENTS = {
    "12.8": "cuda-toolkit[nvcc,cudart,nvrtc,nvfatbin]==12.8.*",
    "13.0": "cuda-toolkit[nvcc,nvvm,crt,cccl,cudart,nvrtc]==13.0.*",
}
_RUNTIME_MAJOR = {"12.8": "12", "13.0": "13"}


@dataclass(frozen=True)
class Toolkits:
    """The CUDA_HOME directories of both toolkits."""

    cuda_12_8: Path
    cuda_13_0: Path


def uv_program() -> str:
    """The uv that stands beside this Python."""
    return str(Path(sys.executable).with_name("uv"))


def _link(link: Path, target: Path) -> None:
    """A relative symlink, so that the whole tree can be moved."""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))


def unify(site: Path, home: Path, major: str) -> Path:
    """Make ``home`` a CUDA_HOME out of the wheels in ``site`` (a site-packages directory).

    ``bin`` and ``lib64`` must be real directories with a link for each file: nvcc looks for the libraries in
    ``bin/../lib64``, which a link to the wheel's own ``bin`` would lead away from ``home``.
    """
    nvidia = site / "nvidia"
    parts = [nvidia / "cu13"] if major == "13" else sorted(part for part in nvidia.iterdir() if part.is_dir())
    for folder, place in (("bin", "bin"), ("lib", "lib64"), ("include", "include"), ("nvvm", "nvvm")):
        for part in parts:
            for entry in sorted((part / folder).iterdir()) if (part / folder).is_dir() else ():
                if entry.name not in {"__init__.py", "__pycache__"}:
                    _link(home / place / entry.name, entry)
    for name in ("libcudart.so", "libnvrtc.so"):
        (home / "lib64" / name).symlink_to(f"{name}.{major}")
    (home / "lib").symlink_to("lib64")
    return home


def cuda_home(release: str, directory: Path) -> Path:
    """The CUDA_HOME of one toolkit below ``directory``; made by the first call."""
    place = directory / f"cuda-{release}"
    if not place.is_dir():
        with tempfile.TemporaryDirectory(dir=directory, prefix=f"cuda-{release}-") as name:
            work = Path(name) / "new"
            command = [uv_program(), "pip", "install", "--quiet", "--python", sys.executable]
            subprocess.run([*command, "--target", str(work / "site"), REQUIREMENTS[release]], check=True)
            unify(work / "site", work / "home", _RUNTIME_MAJOR[release])
            work.rename(place)
    return place / "home"


def toolkits(directory: Path | None = None) -> Toolkits:
    """Both toolkits, from PyPI through uv's cache (325 MB of downloads when that is cold).

    Without ``directory`` they are kept in /tmp/crossgrade-test-toolkits for later runs.
    """
    place = directory or Path(tempfile.gettempdir()) / "crossgrade-test-toolkits"
    place.mkdir(parents=True, exist_ok=True)
    with (place / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return Toolkits(cuda_home("12.8", place), cuda_home("13.0", place))
