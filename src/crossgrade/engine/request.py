"""What a command was asked to do, and where its store is. Cheap: no Jinja, no Fabric."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from crossgrade.errors import CrossgradeError, WrongOptionsError
from crossgrade.playbook.secrets import holds_secret
from crossgrade.playbook.vault_format import is_vault
from crossgrade.store.layout import Store

ROOT_VARIABLE = "crossgrade_root"
DEFAULT_PLAYBOOK = "playbooks/rehearsal.yml"
# Names of variables whose values never go to the journal; they must be given again to resume.
_SECRET = re.compile(r"pass(word|wd|phrase)?|secret|token|credential|api_?key|private_?key", re.IGNORECASE)
NOT_KEPT = "(not kept)"


@dataclass(frozen=True)
class Request:
    """One command's options. `extra_vars` are parsed, `only_tags`/`skip_tags` split; paths are absolute.

    `confirm_within` is seconds, None when nothing need be confirmed. `answers` are those to `vars_prompt`, by the uid
    of the play; they are kept nowhere. `vault` says where passwords of vaults come from (`label@file`,
    `label@prompt`), not what they are.
    """

    command: str
    playbook: Path
    root: Path
    extra_vars: Mapping[str, Any] = field(default_factory=dict)
    inventory: tuple[str, ...] = ()
    limit: str = ""
    only_tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()
    verbosity: int = 0
    confirm_within: int | None = None
    force_handlers: bool = False
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    vault: tuple[str, ...] = ()

    def hint(self, command: str) -> str:
        """A command for people to type next, with the options that bring it to the same store."""
        words = ["crossgrade", *command.split()]
        if self.root != Path(".crossgrade").absolute() / "rehearsal":
            words += ["--root", str(self.root)]
        if words[1] in ("upgrade", "plan") and self.playbook != Path(DEFAULT_PLAYBOOK).absolute():
            words += ["--playbook", str(self.playbook)]
        return " ".join(words)

    @property
    def store(self) -> Store:
        return Store(self.root / "store")

    def to_journal(self) -> dict[str, Any]:
        """As plain data, without what looks like a secret."""
        kept = {
            name: NOT_KEPT if _SECRET.search(name) or holds_secret(value) else value
            for name, value in self.extra_vars.items()
        }
        return {
            **asdict(self),
            "playbook": str(self.playbook),
            "root": str(self.root),
            "extra_vars": kept,
            "answers": {},
        }

    @classmethod
    def from_journal(cls, value: Mapping[str, Any], given: Mapping[str, Any]) -> Request:
        """The request of an interrupted run; `given` are extra variables of the resuming command, which win.

        Raises WrongOptionsError when a variable that was not kept is not given again.
        """
        variables = {**value["extra_vars"], **given}
        missing = [name for name, content in variables.items() if content == NOT_KEPT]
        if missing:
            raise WrongOptionsError(
                f"the interrupted run had variables that are not kept in the journal: {', '.join(missing)}",
                remedy="Give them again with -e.",
            )
        return cls(
            value["command"],
            Path(value["playbook"]),
            Path(value["root"]),
            variables,
            tuple(value["inventory"]),
            value["limit"],
            tuple(value["only_tags"]),
            tuple(value["skip_tags"]),
            confirm_within=value.get("confirm_within"),
            force_handlers=bool(value.get("force_handlers")),
            vault=tuple(value.get("vault", ())),
        )

    def with_command(self, command: str) -> Request:
        return replace(self, command=command)


def find_root(playbook: Path, option: str, extra_vars: Mapping[str, Any]) -> Path:
    """The folder that holds the store: `--root`, else -e, else the playbook's `crossgrade_root`, else a default.

    The default is `.crossgrade/NAME` in the current directory, NAME being the playbook's without its ending.
    Raises CrossgradeError when the playbook's own value holds a template: it must be known before anything runs.
    """
    if option:
        return _real(option)
    given = extra_vars.get(ROOT_VARIABLE)
    # Only a playbook that mentions it is parsed here: `status` and `rollback` stay quick.
    if given is None and playbook.is_file() and _may_name_root(playbook.read_bytes()):
        from crossgrade.playbook.loader import peek_variables

        given = peek_variables(playbook).get(ROOT_VARIABLE)
    if given is None:
        return _real(".crossgrade") / playbook.stem
    if "{{" in str(given) or is_vault(str(given)):
        shown = "encrypted" if is_vault(str(given)) else repr(given)
        raise CrossgradeError(
            f"{ROOT_VARIABLE} is {shown}, but it must be a plain path: it is needed before variables are",
            remedy=f"Write the path itself, or give --root or -e {ROOT_VARIABLE}=PATH.",
        )
    return _real(str(given))


def _may_name_root(content: bytes) -> bool:
    return ROOT_VARIABLE.encode() + b":" in content or b"import_playbook:" in content or is_vault(content)


def _real(root: str) -> Path:
    """However it is written, and by whatever links it is reached, a root is one place: a store compares paths."""
    return Path(os.path.realpath(Path(root).expanduser()))
