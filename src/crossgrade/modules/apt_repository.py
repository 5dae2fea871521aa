"""A package repository for apt: its deb822 source file and its key, which must have the fingerprint that was stated.

Source of the format: sources.list(5), deb822 style, and its Signed-By; RFC 9580, 5.5.4, for fingerprints.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crossgrade.errors import TaskError
from crossgrade.playbook.arguments import argument

NAME = "crossgrade-cuda"
_KEY_PACKET = 6  # RFC 9580, 5: a public key; 14 is a subkey
_ARMOR = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:[^\r\n]+\r?\n)*[ \t]*\r?\n(.*?)(?:\r?\n=.{4})?\r?\n-----END",
    re.DOTALL,
)


@dataclass(frozen=True)
class Repository:
    """Where NVIDIA's packages come from, when apt does not know yet."""

    url: str = argument(doc="Its address, such as https://developer.download.nvidia.com/compute/cuda/repos/…/x86_64/.")
    key: str = argument(doc="A file with its public key, as NVIDIA publishes it.")
    fingerprint: str = argument(doc="The fingerprint that the key must have, 40 hexadecimal digits.")
    suite: str = argument(doc="`/` for a flat repository, as NVIDIA's are.", default="/")
    components: tuple[str, ...] = argument(doc="The components of a suite that has some.", default=())


def source_text(repository: Repository, key: Path) -> str:
    """The content of the .sources file."""
    lines = ["# Made by crossgrade (cuda_toolkit).", "Types: deb", f"URIs: {repository.url}"]
    lines.append(f"Suites: {repository.suite}")
    if repository.components:
        lines.append(f"Components: {' '.join(repository.components)}")
    return "\n".join([*lines, f"Signed-By: {key}", ""])


def read_key(repository: Repository, path: Path) -> tuple[bytes, str]:
    """The key's bytes and the end of the name that apt wants for them (``asc`` or ``gpg``).

    Raises TaskError when the file cannot be read or holds another key than the one stated.
    """
    wanted = re.sub(r"[\s:]", "", repository.fingerprint).upper().removeprefix("0X")
    if not re.fullmatch(r"[0-9A-F]{40}|[0-9A-F]{64}", wanted):
        raise TaskError(f"{repository.fingerprint!r} is no fingerprint: 40 hexadecimal digits were expected")
    try:
        data = path.read_bytes()
        found = fingerprints(data)
    except OSError as error:
        raise TaskError(f"the repository's key {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise TaskError(f"{path} is no OpenPGP key: {error}") from error
    if found != (wanted,):
        raise TaskError(
            f"{path} holds the key {', '.join(found) or 'of nobody'}, not {wanted}",
            remedy="Get the key anew from the repository's owner, and compare its fingerprint with a second source.",
        )
    return data, "asc" if data.lstrip().startswith(b"-----") else "gpg"


def fingerprints(data: bytes) -> tuple[str, ...]:
    """The fingerprints of the primary keys in a keyring, armored or not. Raises ValueError for what is none."""
    match = _ARMOR.search(data)
    if match:
        try:
            data = base64.b64decode(b"".join(match[1].split()), validate=True)
        except binascii.Error as error:
            raise ValueError(f"its armor is damaged: {error}") from error
    return tuple(_fingerprint(packet) for kind, packet in _packets(data) if kind == _KEY_PACKET)


def _fingerprint(packet: bytes) -> str:
    version = packet[0] if packet else 0
    if version == 4:
        return (
            hashlib.sha1(b"\x99" + len(packet).to_bytes(2, "big") + packet, usedforsecurity=False).hexdigest().upper()
        )
    if version == 6:
        return hashlib.sha256(b"\x9b" + len(packet).to_bytes(4, "big") + packet).hexdigest().upper()
    raise ValueError(f"a key of version {version}")


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The packets of a message: type and body (RFC 9580, 4.2)."""
    place = 0
    while place < len(data):
        head = data[place]
        if not head & 0x80:
            raise ValueError("it does not begin with a packet")
        place += 1
        kind, width = (head & 0x3F, 0) if head & 0x40 else ((head >> 2) & 0xF, 1 << (head & 3))
        if not width:
            first = data[place] if place < len(data) else 0
            width, shift = (1, 0) if first < 192 else (2, 0) if first < 224 else (4, 1)
            if 224 <= first < 255 or (not head & 0x40):
                raise ValueError("a packet in parts")
            raw = data[place + shift : place + shift + width]
            size = int.from_bytes(raw, "big") if width != 2 else ((raw[0] - 192) << 8) + raw[-1] + 192
            place += shift + width
        elif width == 8:
            raise ValueError("a packet without a length")
        else:
            size = int.from_bytes(data[place : place + width], "big")
            place += width
        if place + size > len(data):
            raise ValueError("it is cut short")
        yield kind, data[place : place + size]
        place += size
