"""Ansible's vault format, 1.1 and 1.2: what is encrypted by `ansible-vault`, and how it is opened. Pure.

A first line `$ANSIBLE_VAULT;1.1;AES256` (1.2 has a label after that), then lines of hex digits, which give three lines
of hex digits: a salt, an HMAC and the ciphertext. PBKDF2 with SHA-256 makes of password and salt the keys of AES in
counter mode and of the HMAC, and the start of the counter (Ansible's user guide, "Format of files encrypted with
Ansible Vault").
"""

from __future__ import annotations

import hashlib
import hmac
import re
from binascii import unhexlify
from dataclasses import dataclass, field
from functools import lru_cache

MARK = "$ANSIBLE_VAULT;"
# Ansible's environment variables that name passwords
VAULT_VARIABLES = PASSWORD_FILE, IDENTITY_LIST = "ANSIBLE_VAULT_PASSWORD_FILE", "ANSIBLE_VAULT_IDENTITY_LIST"
ITERATIONS = 10_000
KEY_BYTES = 32  # AES-256, and the HMAC's key
BLOCK_BYTES = 16
SALT_BYTES = 4096  # `ansible-vault` takes 32; a longer one is not its work


class VaultFormatError(ValueError):
    """This begins like a vault and is none."""


@dataclass(frozen=True)
class Envelope:
    """An encrypted text. `label` is its vault id, "" in format 1.1."""

    label: str
    salt: bytes
    digest: bytes
    ciphertext: bytes = field(repr=False)


def is_vault(data: str | bytes) -> bool:
    """Whether a text or a file begins as an encrypted one does."""
    return data.startswith(MARK) if isinstance(data, str) else data.startswith(MARK.encode())


def parse_envelope(text: str) -> Envelope:
    """The parts of an encrypted text. Raises VaultFormatError."""
    first, _, rest = text.strip().partition("\n")
    words = [word.strip() for word in first.strip().split(";")]
    if words[0] + ";" != MARK or len(words) < 3:
        raise VaultFormatError("the first line is not that of a vault")
    _, version, cipher, *more = words
    if version not in ("1.1", "1.2"):
        raise VaultFormatError(f"vault format {version} is not supported, 1.1 and 1.2 are")
    if cipher != "AES256":
        raise VaultFormatError(f"the cipher {cipher} is not supported, AES256 is")
    label = ";".join(more) if version == "1.2" else ""
    inner = _unhex(re.sub(rb"\s+", b"", rest.encode("ascii", "replace")), "its lines")
    parts = inner.split(b"\n")
    if len(parts) != 3:
        raise VaultFormatError("it does not hold a salt, an HMAC and a ciphertext: part of it is missing")
    salt, digest, ciphertext = (
        _unhex(part, name) for part, name in zip(parts, ("its salt", "its HMAC", "its ciphertext"), strict=True)
    )
    if len(digest) != hashlib.sha256().digest_size or not 1 <= len(salt) <= SALT_BYTES or not ciphertext:
        raise VaultFormatError("its salt, HMAC or ciphertext has a wrong length: part of it is missing")
    return Envelope(label, salt, digest, ciphertext)


def _unhex(data: bytes, what: str) -> bytes:
    try:
        return unhexlify(data)
    except ValueError as error:
        raise VaultFormatError(f"{what} are no hex digits: it was changed, or cut off") from error


def open_envelope(envelope: Envelope, password: bytes) -> bytes | None:
    """The text that is inside, None when the HMAC does not fit: another password, or a changed text.

    The HMAC is checked before anything is decrypted. Raises VaultFormatError where the padding is wrong although the
    HMAC fits, which no `ansible-vault` writes.
    """
    keys = _derived(password, envelope.salt)
    cipher_key, digest_key, counter = keys[:KEY_BYTES], keys[KEY_BYTES : 2 * KEY_BYTES], keys[2 * KEY_BYTES :]
    if not hmac.compare_digest(hmac.digest(digest_key, envelope.ciphertext, "sha256"), envelope.digest):
        return None
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    decryptor = Cipher(AES(cipher_key), CTR(counter)).decryptor()
    padded = decryptor.update(envelope.ciphertext) + decryptor.finalize()
    count = padded[-1]
    if not 1 <= count <= BLOCK_BYTES or padded[-count:] != bytes([count]) * count:
        raise VaultFormatError("its padding is wrong")
    return padded[:-count]


@lru_cache(maxsize=256)  # a retried plan opens the same values again, at some 10 ms each
def _derived(password: bytes, salt: bytes) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", password, salt, ITERATIONS, 2 * KEY_BYTES + BLOCK_BYTES)
