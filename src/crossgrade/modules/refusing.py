"""Arguments that Ansible's modules have and ours refuse, each with its reason: nothing is ignored in silence."""

from __future__ import annotations

from collections.abc import Mapping

_SELINUX = "labels of SELinux are not set here; `command` with chcon or restorecon sets them"

# what Ansible's modules that write files have in common
FILE: Mapping[str, str] = {
    **dict.fromkeys(("attributes", "attr"), "flags of chattr(1) are not set here; `command` with chattr sets them"),
    **dict.fromkeys(("selevel", "serole", "setype", "seuser"), _SELINUX),
    "unsafe_writes": "a file is always replaced in one rename, so that nobody ever reads half of it",
}
DECRYPT: Mapping[str, str] = {
    "decrypt": "an archive that ansible-vault has encrypted is not decrypted here; `copy` decrypts it"
}
KERBEROS: Mapping[str, str] = {"use_gssapi": "Kerberos (GSSAPI) is not spoken here; `command` with curl speaks it"}
