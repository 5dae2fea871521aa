"""Opening what `ansible-vault` has encrypted, with the passwords of this process.

The command line names the passwords once (`use_passwords`); whatever reads a file afterwards opens it here. What
comes out is kept in memory only, and is a secret from then on: see `secrets`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crossgrade.errors import Place, PlaybookError
from crossgrade.playbook import secrets
from crossgrade.playbook.positions import printable
from crossgrade.playbook.vault_format import MARK, VaultFormatError, is_vault, open_envelope, parse_envelope

GIVE_ONE = "Give --vault-password-file FILE, --vault-id LABEL@FILE or --ask-vault-pass."
Ask = Callable[[], bytes]


@dataclass
class Password:
    """One vault password, found out when it is first needed. `origin` is for messages."""

    label: str
    origin: str
    ask: Ask = field(repr=False)
    _known: bytes | None = field(default=None, repr=False)

    def value(self) -> bytes:
        """Raises WrongOptionsError when it cannot be had."""
        if self._known is None:
            self._known = self.ask()
        return self._known


class VaultError(PlaybookError):
    """What is encrypted cannot be opened."""


_passwords: list[Password] = []


def use_passwords(passwords: Sequence[Password]) -> None:
    """From now on, these open what is encrypted, in this order."""
    _passwords[:] = passwords


def decrypt(text: str, place: Place | None = None) -> bytes:
    """What is inside an encrypted text.

    Passwords whose label is that of the text are tried first, then the others. Raises VaultError, which says where
    it stands, when none opens it or it is damaged; WrongOptionsError when a password cannot be had.
    """
    try:
        envelope = parse_envelope(text)
        tried = list(_passwords)
        if envelope.label:
            tried.sort(key=lambda password: password.label != envelope.label)
        for password in tried:
            opened = open_envelope(envelope, password.value())
            if opened is not None:
                return opened
    except VaultFormatError as error:
        raise VaultError(
            printable(f"encrypted by ansible-vault, but damaged: {error}"),
            remedy="Look whether all of its lines are there, or encrypt it anew.",
            place=place,
        ) from error
    named = f' (vault id "{envelope.label}")' if envelope.label else ""
    if not tried:
        message = printable(f"encrypted by ansible-vault{named}, and no password is given")
        raise VaultError(message, remedy=GIVE_ONE, place=place)
    origins = ", ".join(password.origin for password in tried)
    raise VaultError(
        printable(f"encrypted by ansible-vault{named}, and no given password opens it: {origins}"),
        remedy="Another password encrypted it, or it was changed since: its HMAC does not fit.",
        place=place,
    )


def decrypt_text(text: str, place: Place | None = None) -> str:
    """The same for text. Raises VaultError also when what is inside is not UTF-8."""
    try:
        return decrypt(text, place).decode("utf-8")
    except UnicodeDecodeError as error:
        raise VaultError("what is encrypted here is no UTF-8 text", place=place) from error


def read_sealed(path: Path) -> bytes | None:
    """The content of a file that is encrypted as a whole, None for any other. Raises OSError, VaultError."""
    with path.open("rb") as stream:
        if not is_vault(stream.read(len(MARK))):
            return None
        stream.seek(0)
        return open_sealed(stream.read(), path)


def open_sealed(data: bytes, path: Path) -> bytes | None:
    """What is inside, where it is the content of an encrypted file (at `path`), else None. Raises VaultError."""
    if not is_vault(data):
        return None
    opened = decrypt(data.decode("ascii", "replace"), Place(os.fspath(path), 1, 1))
    secrets.learn_file(opened.decode("utf-8", "replace"))
    return opened
