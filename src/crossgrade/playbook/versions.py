"""The test `version`: which of two versions comes first, by one of several rules."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

from crossgrade.playbook.filter_error import FilterError

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    **dict.fromkeys(("==", "=", "eq"), operator.eq),
    **dict.fromkeys(("!=", "<>", "ne"), operator.ne),
    **dict.fromkeys(("<", "lt"), operator.lt),
    **dict.fromkeys(("<=", "le"), operator.le),
    **dict.fromkeys((">", "gt"), operator.gt),
    **dict.fromkeys((">=", "ge"), operator.ge),
}
_LOOSE = re.compile(r"(\d+|[a-z]+|\.)")


def _loose(text: str) -> list[int | str]:
    """Numbers, runs of small letters, and whatever stands between them."""
    return [int(part) if part.isdecimal() else part for part in _LOOSE.split(text) if part not in ("", ".")]


def _pep440(text: str) -> Any:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text)
    except InvalidVersion:
        raise FilterError(f'"{text}" is no version as PEP 440 has them') from None


def _semantic(text: str) -> Any:
    pattern = r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?"
    found = re.fullmatch(pattern, text)
    if found is None:
        raise FilterError(f'"{text}" is no semantic version (1.2.3)')
    release = tuple(int(part) for part in found.groups()[:3])
    before = [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in (found[4] or "").split(".")]
    return (release, found[4] is None, before if found[4] else [])


def _strict(text: str) -> Any:
    found = re.fullmatch(r"(\d+)\.(\d+)(?:\.(\d+))?(?:([ab])(\d+))?", text)
    if found is None:
        raise FilterError(f'"{text}" is no strict version (1.2.3, 1.2b1)')
    release = (int(found[1]), int(found[2]), int(found[3] or 0))
    return (release, found[4] is None, found[4] or "", int(found[5] or 0))


_VERSIONS: dict[str, Callable[[str], Any]] = {
    "loose": _loose,
    "strict": _strict,
    "semver": _semantic,
    "semantic": _semantic,
    "pep440": _pep440,
}


def compare_versions(
    value: Any, version: Any, operator: str = "eq", strict: bool | None = None, version_type: str | None = None
) -> bool:
    """Whether a version stands in this relation to another: `'12.8' is version('13.0', '<')`."""
    if strict is not None and version_type is not None:
        raise FilterError("`version`: give `strict` or `version_type`, not both")
    for given in (value, version):
        if given is None or given == "":
            raise FilterError("`version` got an empty version")
    if operator not in _OPERATORS:
        raise FilterError(f"`version`: the operator is one of {', '.join(_OPERATORS)}")
    kind = "strict" if strict else version_type or "loose"
    if kind not in _VERSIONS:
        raise FilterError(f"`version`: version_type is one of {', '.join(_VERSIONS)}")
    one, other = _VERSIONS[kind](str(value)), _VERSIONS[kind](str(version))
    try:
        _ = one == other or one < other  # as in Ansible, what has no order is not equal or unequal either
    except TypeError:
        raise FilterError(
            f'`version`: "{value}" and "{version}" have a number and letters in the same place',
            "Give version_type='pep440' (or semver), which knows which of the two comes first.",
        ) from None
    return _OPERATORS[operator](one, other)
