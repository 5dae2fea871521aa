"""NVIDIA's cuobjdump (from PyPI) as the oracle of what device code a file holds, and our reading in its words."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

from crossgrade.inspect.device_code import read_device_code, read_device_file
from crossgrade.inspect.elf import MAGIC, FileSource, parse_elf
from crossgrade.inspect.gpu_architecture import DeviceCode


def cuobjdump_program() -> Path:
    """The program of the dev dependency nvidia-cuda-cuobjdump."""
    import nvidia  # type: ignore[import-not-found,import-untyped,unused-ignore]  # a folder of the dev wheels

    found = next((Path(place) / "cu13/bin/cuobjdump" for place in nvidia.__path__), None)
    assert found is not None
    return found


def listed(path: Path) -> Counter[str]:
    """What cuobjdump lists, as our names with counts. It names no LTO code, and no f variants of machine code."""
    answer = subprocess.run(
        [str(cuobjdump_program()), "--list-elf", "--list-ptx", str(path)],
        capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    if answer.returncode:
        assert "does not contain device code" in answer.stdout + answer.stderr, answer.stderr
    found: Counter[str] = Counter()
    for line in answer.stdout.splitlines():
        if match := re.search(r"\.sm_(\d+[af]?)\.(cubin|ptx)$", line):
            found[("sm_" if match[2] == "cubin" else "compute_") + match[1]] += 1
    return found


def device_code(path: Path) -> DeviceCode | None:
    """Our reading of any kind of file with device code."""
    with FileSource(path) as source:
        if source.read(0, min(4, source.size)) == MAGIC:
            return read_device_code(source, parse_elf(source))
        return read_device_file(source)


def in_its_words(name: str) -> str:
    """One of our names as cuobjdump writes it; empty for what it does not list."""
    if name.startswith("sm_"):
        return name.removesuffix("f")
    return name if name.startswith("compute_") else ""


def counted_images(code: DeviceCode) -> Counter[str]:
    """What stands in nvcc's own sections, as cuobjdump counts it."""
    found: Counter[str] = Counter()
    for image in code.images:
        if name := in_its_words(image.name):
            found[name] += image.count
    return found
