"""The inspector against the loader on whole environments from PyPI: two that serve, and many that do not fit together.

They are made once below ~/.cache/crossgrade/oracle and kept: some 25 GB, in files that they share.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.loader_oracle import Agreement, compare_with_loader
from tests.support.native import build, have_gcc
from tests.support.toolkits import uv_program

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not have_gcc(), reason="gcc is not installed"),
]

KEPT = Path("~/.cache/crossgrade/oracle").expanduser()
CUDA12 = ("torch==2.9.1", "torchvision==0.24.1", "torchaudio==2.9.1", "sgl-kernel==0.3.21", "flashinfer-python==0.6.3",
          "xgrammar==0.1.27", "numpy<2.3", "triton==3.5.1")  # fmt: skip
CUDA13 = ("torch==2.14.1", "torchvision", "sglang-kernel==0.4.10", "flashinfer-python==0.7.2", "xgrammar")


@dataclass(frozen=True)
class Stack:
    """What is installed in turn, each with its dependencies or without; then what is done to the files."""

    installed: tuple[tuple[str, ...], ...]
    change: Callable[[Path], object] = field(default=lambda _: None)


def alone(*requirements: str) -> tuple[str, ...]:
    return ("--no-deps", *requirements)


def removed(*dists: str) -> Callable[[Path], object]:
    return lambda site: uv(site.parents[2], "uninstall", *dists)


def deleted(pattern: str) -> Callable[[Path], object]:
    return lambda site: next(site.glob(pattern)).unlink()


def truncated(pattern: str) -> Callable[[Path], object]:
    """Cut short, as by an installation on a full disk; a new file, for the cache shares the old one."""

    def change(site: Path) -> None:
        path = next(site.glob(pattern))
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data[: len(data) // 2])

    return change


def too_new(site: Path) -> None:
    """An extension from a system whose libstdc++ is newer than this one's."""
    script = "GLIBCXX_3.4.999 { global: newest; local: *; };"
    library = build(
        site / "newer" / "libstdc++.so.6", "int newest(void) { return 1; }",
        options=["-Wl,-soname,libstdc++.so.6"], version_script=script,
    )  # fmt: skip
    build(site / "newer" / "newer.abi3.so", "int newest(void); int f(void) { return newest(); }", libraries=[library])
    library.unlink()


STACKS = {
    "CUDA 12.8": Stack((CUDA12,)),
    "CUDA 13": Stack((CUDA13,)),
    "old kernels on torch of CUDA 13": Stack((("torch==2.11.0",), alone("sgl-kernel==0.3.21"))),
    "torch one minor newer": Stack((("torch==2.10.0",), alone("sgl-kernel==0.3.21", "torchvision==0.24.1"))),
    "torch one minor older": Stack((("torch==2.8.0",), alone("sgl-kernel==0.3.21"))),
    "new kernels on torch of CUDA 12": Stack((("torch==2.9.1",), alone("sglang-kernel==0.4.10"))),
    "torchaudio off": Stack((("torch==2.9.1",), alone("torchaudio==2.11.0"))),
    "wheels of both CUDA majors": Stack((("torch==2.9.1",), alone("nvidia-nccl-cu13", "nvidia-cudnn-cu13"))),
    "the other major removed again": Stack(
        (("torch==2.9.1",), alone("nvidia-nccl-cu13", "nvidia-cudnn-cu13")), removed("nvidia-cudnn-cu13")
    ),
    "numpy 1 under what was built for 2": Stack((("numpy==1.26.4",), alone("pandas==2.3.3", "scipy==1.16.3"))),
    "a library deleted": Stack((("torch==2.9.1",),), deleted("nvidia/cublas/lib/libcublasLt.so.12")),
    "a library truncated": Stack((("torch==2.9.1",),), truncated("torch/lib/libtorch_python.so")),
    "a libstdc++ that is too new": Stack((("numpy<2.3",),), too_new),
}


def uv(venv: Path, *arguments: str) -> None:
    environment = {**os.environ, "VIRTUAL_ENV": str(venv), "UV_CACHE_DIR": str(KEPT / "downloads")}
    subprocess.run([uv_program(), "pip", *arguments], env=environment, check=True, capture_output=True)


def made(name: str) -> Path:
    venv = KEPT / name.replace(" ", "-")
    if not (venv / "complete").exists():
        shutil.rmtree(venv, ignore_errors=True)
        stack = STACKS[name]
        KEPT.mkdir(parents=True, exist_ok=True)
        subprocess.run([uv_program(), "venv", "--quiet", "--python", sys.executable, str(venv)], check=True)
        for requirements in stack.installed:
            uv(venv, "install", "--no-build", "--prerelease=allow", *requirements)
        stack.change(next(venv.glob("lib/python3*/site-packages")))
        (venv / "complete").touch()
    return venv


@pytest.mark.parametrize("name", STACKS)
def test_the_loader_says_the_same(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agreement: Agreement = compare_with_loader(made(name), tmp_path)
    with capsys.disabled():
        counts = ", ".join(f"{count} {what}" for what, count in sorted(agreement.agreed.items()))
        print(f"\n{name}: agreed on {counts}; disagreed on {len(agreement.disagreed)}")  # noqa: T201 - the table
    assert not agreement.disagreed, "\n".join(agreement.disagreed[:20])
    assert sum(agreement.agreed.values()) > 10
