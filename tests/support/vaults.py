"""Texts and files encrypted by the real `ansible-vault`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(sys.executable).with_name("ansible-vault")


def password_file(folder: Path, password: str = "hunter2", name: str = "password") -> Path:  # noqa: S107 - a test's
    path = folder / name
    path.write_text(f"{password}\n", encoding="utf-8")
    return path


def encrypt(text: str | bytes, password: Path, label: str = "") -> str:
    """What `ansible-vault encrypt` makes of a text; with a label in format 1.2."""
    data = text.encode() if isinstance(text, str) else text
    option = ["--vault-id", f"{label}@{password}"] if label else ["--vault-password-file", str(password)]
    return _run(["encrypt", *option, "--output", "-"], data)


def encrypt_value(text: str, name: str, password: Path, label: str = "") -> str:
    """`name: !vault |` and its lines, as `ansible-vault encrypt_string` writes them."""
    option = ["--vault-id", f"{label}@{password}"] if label else ["--vault-password-file", str(password)]
    return _run(["encrypt_string", *option, "--stdin-name", name], text.encode())


def encrypt_file(path: Path, password: Path, label: str = "") -> None:
    """In its place."""
    path.write_text(encrypt(path.read_bytes(), password, label), encoding="utf-8")


def _run(argv: list[str], data: bytes) -> str:
    environment = {**os.environ, "ANSIBLE_HOME": os.fspath(Path(os.environ.get("TMPDIR", "/tmp")) / "ansible-vaults")}  # noqa: S108 - a cache
    done = subprocess.run([PROGRAM, *argv], input=data, check=True, capture_output=True, env=environment)
    return done.stdout.decode()
