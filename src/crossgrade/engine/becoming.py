"""`become`: a task's programs run as another user, through sudo and without a password.

Modules that work on files themselves do so as the user that crossgrade runs as: its journal and store are that
user's, and a change that is not in the journal could not be taken back. So they are refused for another user.
"""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from crossgrade.errors import TaskError
from crossgrade.playbook.model import Task
from crossgrade.playbook.templating import Templar

THROUGH_PROGRAMS = frozenset(("apt", "command", "raw", "service", "shell", "systemd", "systemd_service"))
"""Modules that reach the machine by programs only, which sudo can start."""

SAME_FOR_ANYBODY = frozenset(
    (
        *(
            "add_host",
            "assert",
            "debug",
            "fail",
            "gather_facts",
            "group_by",
            "include_vars",
            "meta",
            "pause",
            "ping",
            "set_fact",
        ),
        *("setup", "uri", "wait_for"),
    )
)
"""Modules for which it makes no difference who runs them."""

DEFAULT_FLAGS = ("-H",)


@dataclass
class Becoming:
    """Finds the beginning of the command line for another user. What sudo answered is asked once for a user."""

    environment: Mapping[str, str]
    _refused: dict[tuple[str, ...], str] = field(default_factory=dict)

    def prefix(self, task: Task, templar: Templar) -> tuple[str, ...]:
        """What to put before a program's arguments; nothing where the user is right already.

        Variables such as `ansible_become_user` win over keywords, as in Ansible. Raises TaskError.
        """
        conduct = task.conduct
        wanted = _given(templar, "ansible_become", conduct.become)
        if not templar.boolean(wanted, default=False, spot=task.spot):
            return ()
        user = _text(templar, "ansible_become_user", conduct.become_user) or "root"
        method = _text(templar, "ansible_become_method", conduct.become_method) or "sudo"
        if method.removeprefix("ansible.builtin.") != "sudo":
            raise TaskError(f"become_method {method!r} is not supported", remedy="Only sudo is.")
        if _is_me(user) or task.module in SAME_FOR_ANYBODY:
            return ()
        if task.module not in THROUGH_PROGRAMS:
            raise TaskError(
                f"`{task.module}` cannot become {user}: it works as the user that crossgrade runs as, so that what it "
                "changes can be taken back",
                remedy=f"Start crossgrade as {user}, or as root and give the files' `owner`.",
            )
        program = _text(templar, "ansible_become_exe", conduct.become_exe) or "sudo"
        flags = _text(templar, "ansible_become_flags", conduct.become_flags)
        words = (program, "-n", *(shlex.split(flags) if flags else DEFAULT_FLAGS), "-u", user, "--")
        self._check(words, user)
        return words

    def _check(self, words: tuple[str, ...], user: str) -> None:
        from crossgrade.process import StartError, run_process

        if words not in self._refused:
            try:
                tried = run_process([*words, "true"], env=self.environment, timeout=20)
            except StartError as error:
                self._refused[words] = error.message
            else:
                said = (tried.stderr or tried.stdout).strip().splitlines()
                self._refused[words] = "" if tried.succeeded else said[-1] if said else tried.outcome()
        refused = self._refused[words]
        if refused:
            raise TaskError(
                f"cannot become {user}: {refused}",
                remedy="crossgrade asks nobody for a password: allow it in sudoers with NOPASSWD, "
                f"or start crossgrade as {user}.",
            )


def with_environment(
    prefix: Sequence[str], argv: Sequence[str], environment: Mapping[str, str], base: Mapping[str, str]
) -> list[str]:
    """The command line for another user. sudo hands on no environment, so what differs from `base` is given by env."""
    if not prefix:
        return list(argv)
    own = [f"{name}={value}" for name, value in environment.items() if base.get(name) != value]
    return [*prefix, *(("env", *own) if own else ()), *argv]


def _given(templar: Templar, variable: str, keyword: object) -> bool | str | None:
    found = templar.scope.find(variable)
    if found is not None:
        value = templar.template("{{ " + variable + " }}")
        return value if isinstance(value, bool) else str(value)
    return keyword if isinstance(keyword, bool | str) else None


def _text(templar: Templar, variable: str, keyword: str | None) -> str:
    given = _given(templar, variable, keyword)
    return "" if given is None else str(templar.template(str(given))).strip()


def _is_me(user: str) -> bool:
    try:
        number = int(user.removeprefix("#")) if user.startswith("#") else pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        raise TaskError(f"become_user: there is no user {user!r}") from None
    return number == os.geteuid()
