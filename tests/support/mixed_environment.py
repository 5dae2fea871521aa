"""A small environment as people have them, with one fault or with all: tiny wheels, real venvs, a real git checkout."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.tiny_wheels import tiny_venv, tiny_wheel, uv_pip

NCCL = "nvidia/nccl/lib/libnccl.so.2"
TORCH = {"torch/__init__.py": b"", "torch/version.py": b'__version__ = "2.9.1"\ncuda = "12.8"\n'}
ENGINE = {
    "engine/__init__.py": b"VERSION = 1\n",
    "engine/app.py": b"APP = 1\n",
    "engine/edited.py": b"E = 1\n",
    "engine/extra.py": b"EXTRA = 1\n",
}


def site_of(venv: Path) -> Path:
    return next(venv.glob("lib/python3*/site-packages"))


def healthy(folder: Path) -> Path:
    """An environment `folder`/ml-env without a fault; its wheels lie in `folder`/wheels."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    made = [
        tiny_wheel(wheels, "torch", "2.9.1", TORCH),
        tiny_wheel(wheels, "nvidia-nccl-cu12", "2.27.5", {NCCL: b"nccl 12"}),
        tiny_wheel(wheels, "flashinfer-python", "0.6.3", {"flashinfer/__init__.py": b""}),
        tiny_wheel(wheels, "flashinfer-cubin", "0.6.3", {"flashinfer_cubin/__init__.py": b""}),
        tiny_wheel(wheels, "cg-engine", "1.0", ENGINE, ["torch==2.9.1", "numpy>=2"]),
        tiny_wheel(wheels, "numpy", "2.1.0", {"numpy/__init__.py": b""}),
    ]
    return tiny_venv(folder / "ml-env", *made)


def add(
    venv: Path, name: str, version: str, files: dict[str, bytes] | None = None, requires: tuple[str, ...] = ()
) -> None:
    """One more dist, whatever it asks for."""
    wheel = tiny_wheel(venv.parent / "wheels", name, version, files, requires)
    uv_pip(venv, "install", "--no-deps", str(wheel))


def info_of(venv: Path, name: str) -> Path:
    return next(site_of(venv).glob(f"{name}-*.dist-info"))


def put(path: Path, content: bytes) -> None:
    """A new file in the place of the old one, as an editor writes it: uv's cache may share the old one."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def git(folder: Path, *arguments: str) -> None:
    own = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "a", "GIT_COMMITTER_NAME": "a",
           "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_EMAIL": "a@b"}  # fmt: skip
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, env={**os.environ, **own})


def checkout_with_work(folder: Path, files: dict[str, bytes], changed: str) -> Path:
    """A clone of an `upstream`, one commit ahead of it, with `changed` edited and not committed."""
    upstream, clone = folder / "upstream", folder / "checkout"
    upstream.mkdir(parents=True)
    for path, content in files.items():
        put(upstream / path, content)
    git(upstream, "init", "-q", "-b", "main")
    git(upstream, "add", "-A")
    git(upstream, "commit", "-q", "-m", "as published")
    git(folder, "clone", "-q", str(upstream), str(clone))
    put(clone / "ours.py", b"OURS = 1\n")
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "ours")
    with (clone / changed).open("ab") as file:
        file.write(b"# not committed\n")
    return clone


# ---- one fault each


def _two_dists(venv: Path) -> None:
    add(venv, "cg-fork", "1.0", {"engine/app.py": b"FORK = 1\n"})


def _majors(venv: Path) -> None:
    add(venv, "nvidia-cublas", "13.1.0", {"nvidia/cu13/lib/libcublas.so.13": b"cublas"})


def _cubin(venv: Path) -> None:
    add(venv, "flashinfer-cubin", "0.6.13", {"flashinfer_cubin/__init__.py": b"13"})


def _pair(venv: Path) -> None:
    add(venv, "sglang", "0.5.9", None, ("sgl-kernel==0.3.21",))
    add(venv, "sglang-kernel", "0.4.10", {"sgl_kernel/__init__.py": b""})


def _unmet(venv: Path) -> None:
    add(venv, "cg-tool", "1.0", None, ("aiohttp", "uvloop>=0.2"))


def _numpy(venv: Path) -> None:
    add(venv, "pandas", "2.1.4", None, ("numpy<2",))


def _python(venv: Path) -> None:
    info = info_of(venv, "cg_engine")
    put(info / "WHEEL", b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp27-cp27m-linux_x86_64\n")


def _metadata(venv: Path) -> None:
    put(info_of(venv, "numpy") / "METADATA", b"")


def _no_record(venv: Path) -> None:
    (info_of(venv, "numpy") / "RECORD").unlink()


def _missing(venv: Path) -> None:
    (site_of(venv) / "engine/extra.py").unlink()


def _interrupted(venv: Path) -> None:
    (site_of(venv) / "~orch").mkdir()
    put(site_of(venv) / "-rch-2.8.0.dist-info/METADATA", b"Name: torch\nVersion: 2.8.0\n\n")


def _twice(venv: Path) -> None:
    info = info_of(venv, "numpy")
    old = info.with_name("numpy-2.0.0.dist-info")
    for name in ("METADATA", "WHEEL"):
        put(old / name, (info / name).read_bytes().replace(b"2.1.0", b"2.0.0"))
    put(old / "RECORD", b"numpy-2.0.0.dist-info/RECORD,,\n")


def _editable(venv: Path) -> None:
    clone = checkout_with_work(venv.parent / "git", {"placed/__init__.py": b"P = 1\n"}, "placed/__init__.py")
    add(venv, "placed", "1.0", {"__editable__.placed.pth": f"{clone}\n".encode()})
    put(info_of(venv, "placed") / "direct_url.json",
        json.dumps({"url": clone.as_uri(), "dir_info": {"editable": True}}).encode())  # fmt: skip


def _edited(venv: Path) -> None:
    put(site_of(venv) / "engine/edited.py", b"E = 'by hand'\n")
    put(site_of(venv) / "engine/ours.py", b"OURS = 1\n")


def _pth(venv: Path) -> None:
    put(site_of(venv) / "old-tool.pth", b"/nowhere/old-tool\nimport os; os.environ.setdefault('X', '1')\n")


def _leak(venv: Path) -> None:
    outside = venv.parent / "my-modules"
    outside.mkdir()
    put(site_of(venv) / "mine.pth", f"# mine\n{outside}\n".encode())


FAULTS: dict[str, Callable[[Path], None]] = {
    "two-dists-one-path": _two_dists,
    "cuda-majors-mixed": _majors,
    "stale-flashinfer-cubin": _cubin,
    "version-pair": _pair,
    "requirement-unmet": _unmet,
    "numpy-mismatch": _numpy,
    "editable": _editable,  # what makes a dist that uv refuses comes after what installs
    "wrong-python": _python,
    "damaged-metadata": _metadata,
    "no-record": _no_record,
    "files-missing": _missing,
    "interrupted-install": _interrupted,
    "two-versions": _twice,
    "edited-by-hand": _edited,
    "leftover-pth": _pth,
    "import-leak": _leak,
}
