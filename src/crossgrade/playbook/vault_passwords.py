"""Where vault passwords come from: files, programs, the terminal; from options and Ansible's variables."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from crossgrade.errors import WrongOptionsError
from crossgrade.playbook.positions import printable
from crossgrade.playbook.vault import Password
from crossgrade.playbook.vault_format import IDENTITY_LIST, PASSWORD_FILE

DEFAULT = "default"
PROMPTS = ("prompt", "prompt_ask_vault_pass")
MAX_BYTES = 1_000_000
PROGRAM_SECONDS = 120.0  # somebody may have to type in a window


def vault_sources(
    password_files: Sequence[str], ids: Sequence[str], *, ask: bool, directory: Path | None = None
) -> tuple[str, ...]:
    """The options as `label@source`, paths absolute. Raises WrongOptionsError for an empty one."""
    found = [f"{DEFAULT}@{_absolute(file, directory)}" for file in password_files]
    for one in ids:
        label, at, source = one.rpartition("@")
        if not source:
            raise WrongOptionsError(f"--vault-id {printable(one)}: expected LABEL@FILE or LABEL@prompt")
        where = source if source in PROMPTS else _absolute(source, directory)
        found.append(f"{label if at and label else DEFAULT}@{where}")
    if ask:
        found.append(f"{DEFAULT}@prompt")
    return tuple(found)


def _absolute(file: str, directory: Path | None) -> str:
    if not file:
        raise WrongOptionsError("--vault-password-file needs a file")
    return str((directory or Path.cwd()) / Path(file).expanduser())


def passwords_of(sources: Sequence[str], environment: Mapping[str, str]) -> list[Password]:
    """The passwords that `vault_sources` name, then those of Ansible's environment variables. None is asked for yet."""
    found = [_password(source, environment) for source in sources]
    listed = [one.strip() for one in environment.get(IDENTITY_LIST, "").split(",") if one.strip()]
    file = environment.get(PASSWORD_FILE, "").strip()
    found += [_password(source, environment) for source in vault_sources([file] if file else [], listed, ask=False)]
    return found


def _password(source: str, environment: Mapping[str, str]) -> Password:
    label, _, where = source.partition("@")
    if where in PROMPTS:
        return Password(label, "asked for at the terminal", partial(_prompt, label))
    path = Path(where)
    return Password(label, where, partial(_from_file, label, path, environment))


def _prompt(label: str) -> bytes:
    if not sys.stdin.isatty():
        raise WrongOptionsError(
            "a vault password is to be asked for, and there is no terminal",
            remedy="Give --vault-password-file FILE.",
        )
    from getpass import getpass

    named = f" ({printable(label)})" if label != DEFAULT else ""
    try:
        given = getpass(f"Vault password{named}: ")
    except EOFError as error:
        raise WrongOptionsError("no vault password was given") from error
    return _checked(given.encode(errors="surrogateescape"), "the terminal")


def _from_file(label: str, path: Path, environment: Mapping[str, str]) -> bytes:
    """What a password file holds, or says when it is a program, without the space around it."""
    if path.is_dir() or not path.exists():
        raise WrongOptionsError(f"the vault password file {path} is not there", remedy="Look at its path.")
    if os.access(path, os.X_OK):
        return _from_program(label, path, environment)
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES)
    except OSError as error:
        raise WrongOptionsError(f"the vault password file {path} cannot be read: {error.strerror}") from error
    return _checked(data.strip(), str(path))


def _from_program(label: str, path: Path, environment: Mapping[str, str]) -> bytes:
    """A program prints the password; one whose name ends in `-client` is told which vault id is wanted."""
    from crossgrade.process import StartError, run_process

    argv = [str(path), *(["--vault-id", label] if path.stem.endswith("-client") else [])]
    try:
        completed = run_process(argv, env=environment, timeout=PROGRAM_SECONDS)
    except (StartError, OSError) as error:
        raise WrongOptionsError(
            f"the vault password file {path} is executable and cannot be run: {error}",
            remedy="If it is a plain text: `chmod a-x` it.",
        ) from error
    if not completed.succeeded:
        said = completed.stderr.strip().splitlines()
        raise WrongOptionsError(
            f"the vault password program {path} failed: {completed.outcome()}",
            remedy=printable(said[-1]) if said else "",
        )
    return _checked(completed.stdout.strip("\r\n").encode(), str(path))


def _checked(password: bytes, origin: str) -> bytes:
    if not password:
        raise WrongOptionsError(f"the vault password from {origin} is empty")
    return password
