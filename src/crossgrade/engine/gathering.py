"""Facts of the machine as variables: `ansible_facts.NAME`, and `ansible_NAME` for each of Ansible's names."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from crossgrade.modules.setup import OWN, PREFIX, gather

_WITHOUT_PREFIX = ("gather_subset", "module_setup")


def add_facts(gathered: MutableMapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Add facts (names without `ansible_`) to the variables that a host's facts have given it so far.

    crossgrade's own facts are `ansible_facts.crossgrade`, and beside Ansible's names where those leave room.
    """
    known = gathered.get("ansible_facts", {})
    own = facts.get(OWN, {})
    gathered["ansible_facts"] = {
        **known,
        **{name: value for name, value in own.items() if name not in known},
        **facts,
    }
    for name, value in facts.items():
        if name not in (OWN, *_WITHOUT_PREFIX) and _is_plain(name):
            gathered[PREFIX + name] = value


def _is_plain(name: str) -> bool:
    return name.isidentifier()


__all__ = ["add_facts", "gather"]
