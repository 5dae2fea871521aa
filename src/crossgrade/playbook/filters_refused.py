"""Filters of Ansible's that are not there, each with the reason and what to write instead."""

from __future__ import annotations

_WINDOWS = ("it takes paths of Windows apart, and crossgrade works on Linux", "Write the filter without `win_`.")
_VAULT = ("a template has no passwords of vaults", "Decrypt the file beforehand, or give --vault-password-file.")

REFUSED: dict[str, tuple[str, str]] = {
    "password_hash": (
        "it needs a library for password hashes, which crossgrade does not bring",
        "Make the hash once (`openssl passwd -6`) and keep it in a variable, or read it with a lookup.",
    ),
    "unvault": _VAULT,
    "vault": _VAULT,
    "win_basename": _WINDOWS,
    "win_dirname": _WINDOWS,
    "win_splitdrive": _WINDOWS,
}
