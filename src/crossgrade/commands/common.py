"""What the commands share: options to a request, and errors to text and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from crossgrade.engine.request import DEFAULT_PLAYBOOK, Request, find_root
from crossgrade.errors import CrossgradeError, ExitCode, WrongOptionsError
from crossgrade.playbook.secrets import masked
from crossgrade.playbook.vault_format import VAULT_VARIABLES
from crossgrade.report.steady import mute
from crossgrade.store.layout import Store


def request_from(options: Mapping[str, Any], command: str) -> Request:
    """The request that a command line makes. Raises WrongOptionsError."""
    vault = open_vaults(options)
    extra_vars: dict[str, Any] = {}
    if options.get("extra_vars"):
        from crossgrade.playbook.extra_vars import parse_extra_vars

        extra_vars = parse_extra_vars(options["extra_vars"])
    playbook = Path(options.get("playbook") or DEFAULT_PLAYBOOK).expanduser().absolute()
    return Request(
        command=command,
        playbook=playbook,
        root=find_root(playbook, options.get("root") or "", extra_vars),
        extra_vars=extra_vars,
        inventory=tuple(options.get("inventory") or ()),
        limit=options.get("limit") or "",
        only_tags=_split(options.get("tags") or ()),
        skip_tags=_split(options.get("skip_tags") or ()),
        verbosity=options.get("verbose") or 0,
        force_handlers=bool(options.get("force_handlers")),
        confirm_within=_seconds(options.get("confirm_within") or ""),
        vault=vault,
    )


def open_vaults(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Use the vault passwords that options name. They are looked up at once: a wrong path must come out.

    Returns where they come from. Raises WrongOptionsError.
    """
    files, ids = options.get("vault_password_file") or (), options.get("vault_id") or ()
    if not (files or ids or options.get("ask_vault_pass") or any(os.environ.get(name) for name in VAULT_VARIABLES)):
        return ()
    from crossgrade.playbook.vault_passwords import vault_sources

    sources = vault_sources(files, ids, ask=bool(options.get("ask_vault_pass")))
    use_vault(sources)
    return sources


def use_vault(sources: Sequence[str]) -> None:
    """Open what is encrypted with these passwords, and those of Ansible's variables. Raises WrongOptionsError."""
    from crossgrade.playbook.vault import use_passwords
    from crossgrade.playbook.vault_passwords import passwords_of

    passwords = passwords_of(sources, os.environ)
    for password in passwords[: len(sources)]:
        password.value()
    use_passwords(passwords)


def _split(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(tag.strip() for value in values for tag in value.split(",") if tag.strip())


_MOST_DIGITS = 18
LONGEST_WAIT = 366 * 24 * 3600  # a year: longer, and it is no confirmation that is waited for


def number(option: str, text: str) -> int | None:
    """A whole number from 0 up from an option, None when it was not given. Raises WrongOptionsError."""
    if text == "":
        return None
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise WrongOptionsError(f"--{option} needs a whole number, not {text!r}")
    return int(text)


def generation_number(options: Mapping[str, Any], name: str = "generation") -> int:
    """The generation that a positional argument names. Raises WrongOptionsError."""
    found = number("generation", options[name])
    return 0 if found is None else found  # `""` was given: no store has a generation 0, and the message says so


def agreed(options: Mapping[str, Any], question: str) -> bool:
    """Ask, where there is somebody to ask: a terminal on both sides, and neither --yes nor --json."""
    if options["yes"] or options["json"] or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _seconds(text: str) -> int | None:
    seconds = number("confirm-within", text)
    if seconds is not None and not 1 <= seconds <= LONGEST_WAIT:
        raise WrongOptionsError(f"--confirm-within goes from 1 to {LONGEST_WAIT} seconds, not {text}")
    return seconds


def existing_store(request: Request) -> Store:
    """The store that a command is about. Raises CrossgradeError when there is none."""
    if not request.store.exists:
        raise CrossgradeError(
            f"there is no store at {request.store.root}",
            remedy="Run `crossgrade upgrade` first, or say where it is with --root or --playbook.",
        )
    return request.store


def named_venv(options: Mapping[str, Any], request: Request) -> Path | None:
    """What --venv names, else the store's active environment, else the one that is activated in this shell."""
    if options["venv"]:
        path = Path(options["venv"]).expanduser().absolute()
        if not path.is_dir():
            raise CrossgradeError(f"there is no {path}", remedy="--venv names the folder of an environment.")
        return path
    if request.store.exists and (link := request.store.active_link) is not None:
        return link
    return Path(os.environ["VIRTUAL_ENV"]) if os.environ.get("VIRTUAL_ENV") else None


def people(options: Mapping[str, Any]) -> TextIO:
    """Where text for people goes: stdout, or stderr when stdout is for events."""
    return sys.stderr if options.get("json") else sys.stdout


def complain(text: str) -> None:
    """Write an error to stderr, without secrets; when that cannot be, the exit code says it alone."""
    try:
        print(f"crossgrade: {masked(text)}", file=sys.stderr, flush=True)  # noqa: T201 - the program's own error output
    except OSError:
        mute(sys.stderr)


def guarded(body: Callable[[], int]) -> int:
    """Run a command; errors that a user can mend are shown without a traceback, with their exit code."""
    from crossgrade.engine.interrupt import Interrupted

    try:
        return int(body())
    except CrossgradeError as error:
        complain(str(error))
        return int(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone; nothing is left to say
        return int(ExitCode.NOTHING_CHANGED)
    except OSError as error:
        # The machine says no (a read-only disk, a file where a folder should be): not a fault of ours.
        where = f"{error.filename}: " if error.filename else ""
        complain(f"{where}{error.strerror or error}")
        return int(ExitCode.NOTHING_CHANGED)
    except (Interrupted, KeyboardInterrupt):
        complain("interrupted")
        return int(ExitCode.INTERRUPTED)
