"""Logging in with keys as OpenSSH does: the stated files or those of ~/.ssh, then the agent's."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade.errors import HostUnreachableError

if TYPE_CHECKING:
    from paramiko import PKey, Transport

DEFAULT_FILES = (
    "id_ed25519",
    "id_ecdsa",
    "id_rsa",
)  # names that ssh(1) tries, of the kinds that Paramiko reads


class KeyLogin:
    """One login; Paramiko calls `authenticate`. Unlike Paramiko's own, it tells what was tried.

    `stated` are the key files of the inventory or of IdentityFile; with `only_stated` (IdentitiesOnly) the
    agent's other keys are not offered. `required` is a file that must exist.
    """

    def __init__(
        self,
        host: str,
        user: str,
        stated: Sequence[Path],
        only_stated: bool,
        required: Path | None,
        load: Callable[[Path], PKey],
    ) -> None:
        self._host = host
        self._user = user
        self._files = stated or [Path.home() / ".ssh" / name for name in DEFAULT_FILES]
        self._only_stated = only_stated
        self._required = required
        self._load = load
        self._tried: list[str] = []

    def authenticate(self, transport: Transport) -> list[str]:
        """Returns once the login is done; raises HostUnreachableError when no key is accepted."""
        from paramiko import AuthenticationException, BadAuthenticationType

        if self._required is not None and not self._required.is_file():
            raise HostUnreachableError(
                f"{self._host}: the key file {self._required} does not exist",
                remedy="Check ansible_ssh_private_key_file in the inventory.",
            )
        for label, key in self._keys():
            try:
                further = transport.auth_publickey(self._user, key)
            except BadAuthenticationType as error:
                raise self._refused(f"it accepts no keys, only {', '.join(error.allowed_types)}") from error
            except AuthenticationException:
                self._tried.append(f"{label} was refused")
                continue
            if further:
                raise self._refused(f"after the key it also wants {', '.join(further)}")
            return []
        raise self._refused("; ".join(self._tried) or "there is no key to offer")

    def _refused(self, reason: str) -> HostUnreachableError:
        return HostUnreachableError(
            f"{self._host}: login as {self._user} failed: {reason}",
            remedy="Check ansible_user and ansible_ssh_private_key_file, and that the public key stands in "
            f"~{self._user}/.ssh/authorized_keys there (ssh-copy-id).",
        )

    def _keys(self) -> Iterator[tuple[str, PKey]]:
        """Keys in the order of trying, one at a time: the agent is only asked when no file was accepted."""
        for path in self._files:
            key = self._read(path)
            if key is not None:
                yield str(path), key
        from paramiko import Agent

        agent = Agent()
        try:
            wanted = {blob for path in self._files if (blob := _public_blob(path))}
            for agent_key in agent.get_keys():
                if not self._only_stated or agent_key.asbytes() in wanted:
                    yield f"the agent's key {agent_key.comment or agent_key.get_name()}", agent_key
        finally:
            agent.close()

    def _read(self, path: Path) -> PKey | None:
        if not path.is_file():
            return None
        try:
            return self._load(path)
        except TypeError:  # what the cryptography library raises for a key without its passphrase
            self._tried.append(f"{path} has a passphrase (add it to ssh-agent)")
        except Exception as error:  # noqa: BLE001  # a key file can be damaged in many ways, each its own error
            self._tried.append(f"{path} cannot be read ({error})")
        return None


def _public_blob(path: Path) -> bytes:
    """The public half of a key file, from the .pub file beside it; empty where there is none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return base64.b64decode(path.with_name(f"{path.name}.pub").read_text().split()[1])
    return b""
