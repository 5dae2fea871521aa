"""Tiny wheels with any files and requirements, and real venvs that uv installs them into, without a network."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.toolkits import uv_program


def recorded_hash(content: bytes, algorithm: str = "sha256") -> str:
    """A hash as RECORD writes it: ``sha256=…``, URL-safe base64 without padding."""
    digest = hashlib.new(algorithm, content).digest()
    return f"{algorithm}={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def tiny_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, bytes] | None = None, requires: Sequence[str] = ()
) -> Path:
    """A wheel of these files (path in site-packages → content); a file of its own where there are none."""
    escaped = name.replace("-", "_")
    info = f"{escaped}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    content = {
        **({f"{escaped}.py": b""} if files is None else files),
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{path},{recorded_hash(data)},{len(data)}\n" for path, data in content.items()]
    path = folder / f"{escaped}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for place, data in content.items():
            wheel.writestr(place, data)
        wheel.writestr(f"{info}/RECORD", "".join(record) + f"{info}/RECORD,,\n")
    return path


def tiny_venv(place: Path, *wheels: Path) -> Path:
    """A venv that holds these wheels, installed one after the other without regard to what they require."""
    subprocess.run([uv_program(), "--quiet", "--offline", "venv", place], check=True)
    for wheel in wheels:
        uv_pip(place, "install", "--no-deps", str(wheel))
    return place


def uv_pip(venv: Path, command: str, *arguments: str) -> None:
    """Run ``uv pip`` for a venv; fails when uv does."""
    uv = [uv_program(), "--quiet", "--offline", "pip", command, "--python", str(venv / "bin" / "python")]
    subprocess.run([*uv, *arguments], check=True, capture_output=True)
