"""Ansible's tests (`is …`), beside those that Jinja brings."""

from __future__ import annotations

import operator
import os.path
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2.runtime import Undefined

from crossgrade.playbook.argument_types import FALSE_WORDS, TRUE_WORDS, name_of_type
from crossgrade.playbook.markers import DependsOnUnknown, Unknown


class TestError(ValueError):
    """A test that got what it cannot judge."""

    __test__ = False  # for pytest: no test class


def defined(value: Any) -> bool:
    if isinstance(value, Unknown) and not value.certain:
        raise DependsOnUnknown(value.origin)
    return not isinstance(value, Undefined)


def undefined(value: Any) -> bool:
    return not defined(value)


def _part(result: Any, name: str, test: str) -> Any:
    """A part of a task's result, or None."""
    if isinstance(result, Unknown):
        value = result.part(name)
        if isinstance(value, Unknown):
            raise DependsOnUnknown(value.origin)
        return value
    if not isinstance(result, Mapping):
        raise TestError(f"`is {test}` tests the result of a task, and this is {name_of_type(result)}")
    value = result.get(name)
    if isinstance(value, Unknown):
        raise DependsOnUnknown(value.origin)
    return value


def failed(result: Any) -> bool:
    return bool(_part(result, "failed", "failed"))


def succeeded(result: Any) -> bool:
    return not bool(_part(result, "failed", "succeeded"))


def skipped(result: Any) -> bool:
    return bool(_part(result, "skipped", "skipped"))


def unreachable(result: Any) -> bool:
    return bool(_part(result, "unreachable", "unreachable"))


def reachable(result: Any) -> bool:
    return not bool(_part(result, "unreachable", "reachable"))


def changed(result: Any) -> bool:
    if isinstance(result, Mapping) and "changed" not in result and isinstance(result.get("results"), list):
        return any(isinstance(one, Mapping) and bool(one.get("changed")) for one in result["results"])
    return bool(_part(result, "changed", "changed"))


def _regex(method: str) -> Callable[..., bool]:
    def test(value: Any, pattern: Any = "", ignorecase: bool = False, multiline: bool = False) -> bool:
        from crossgrade.playbook.filters_text import compiled

        return bool(getattr(compiled(pattern, ignorecase, multiline), method)(str(value)))

    return test


def regex(
    value: Any, pattern: Any = "", ignorecase: bool = False, multiline: bool = False, match_type: str = "search"
) -> bool:
    method = match_type if match_type in ("match", "fullmatch") else "search"
    return _regex(method)(value, pattern, ignorecase, multiline)


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    **dict.fromkeys(("==", "=", "eq"), operator.eq),
    **dict.fromkeys(("!=", "<>", "ne"), operator.ne),
    **dict.fromkeys(("<", "lt"), operator.lt),
    **dict.fromkeys(("<=", "le"), operator.le),
    **dict.fromkeys((">", "gt"), operator.gt),
    **dict.fromkeys((">=", "ge"), operator.ge),
}
_LOOSE = re.compile(r"\d+|[a-z]+")


def _loose(text: str) -> list[tuple[int, int | str]]:
    """Numbers and runs of letters in turn; letters sort below numbers, so that 1.0rc1 is below 1.0.1."""
    return [(1, int(part)) if part.isdigit() else (0, part) for part in _LOOSE.findall(text.lower())]


def _pep440(text: str) -> Any:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text)
    except InvalidVersion:
        raise TestError(f'"{text}" is no version as PEP 440 has them') from None


def _semantic(text: str) -> Any:
    pattern = r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?"
    found = re.fullmatch(pattern, text)
    if found is None:
        raise TestError(f'"{text}" is no semantic version (1.2.3)')
    release = tuple(int(part) for part in found.groups()[:3])
    before = [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in (found[4] or "").split(".")]
    return (release, found[4] is None, before if found[4] else [])


def _strict(text: str) -> Any:
    found = re.fullmatch(r"(\d+)\.(\d+)(?:\.(\d+))?(?:([ab])(\d+))?", text)
    if found is None:
        raise TestError(f'"{text}" is no strict version (1.2.3, 1.2b1)')
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
        raise TestError("`version`: give `strict` or `version_type`, not both")
    for given in (value, version):
        if given is None or given == "":
            raise TestError("`version` got an empty version")
    if operator not in _OPERATORS:
        raise TestError(f"`version`: the operator is one of {', '.join(_OPERATORS)}")
    kind = "strict" if strict else version_type or "loose"
    if kind not in _VERSIONS:
        raise TestError(f"`version`: version_type is one of {', '.join(_VERSIONS)}")
    parse = _VERSIONS[kind]
    return _OPERATORS[operator](parse(str(value)), parse(str(version)))


def truthy(value: Any, convert_bool: bool = False) -> bool:
    if convert_bool and isinstance(value, str):
        word = value.strip().lower()
        if word in TRUE_WORDS | FALSE_WORDS:
            return word in TRUE_WORDS
    return bool(value)


def falsy(value: Any, convert_bool: bool = False) -> bool:
    return not truthy(value, convert_bool)


def subset(value: Iterable[Any], other: Iterable[Any]) -> bool:
    others = list(other)
    return all(item in others for item in value)


def superset(value: Iterable[Any], other: Iterable[Any]) -> bool:
    return subset(other, value)


def contains(value: Any, item: Any) -> bool:
    return item in value


def is_in(value: Any, container: Any) -> bool:
    return value in container


def _file(test: Callable[[str], bool]) -> Callable[[Any], bool]:
    def apply(value: Any) -> bool:
        return test(str(value))

    return apply


def same_file(value: Any, other: Any) -> bool:
    return os.path.samefile(str(value), str(other))  # noqa: PTH121 - raises the same OSError, without a Path


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


_ONE_NAME: dict[str, Any] = {
    "abs": _file(os.path.isabs),
    "contains": contains,
    "defined": defined,
    "exists": _file(os.path.exists),
    "falsy": falsy,
    "in": is_in,
    "link_exists": _file(os.path.lexists),
    "match": _regex("match"),
    "nan": is_nan,
    "reachable": reachable,
    "regex": regex,
    "same_file": same_file,
    "search": _regex("search"),
    "truthy": truthy,
    "undefined": undefined,
    "unreachable": unreachable,
}
_SEVERAL_NAMES: list[tuple[tuple[str, ...], Any]] = [
    (("changed", "change"), changed),
    (("directory", "is_dir"), _file(os.path.isdir)),
    (("failed", "failure"), failed),
    (("file", "is_file"), _file(os.path.isfile)),
    (("link", "is_link"), _file(os.path.islink)),
    (("mount", "is_mount"), _file(os.path.ismount)),
    (("skipped", "skip"), skipped),
    (("subset", "issubset"), subset),
    (("succeeded", "success", "successful"), succeeded),
    (("superset", "issuperset"), superset),
    (("version", "version_compare"), compare_versions),
]
TESTS: dict[str, Any] = {**_ONE_NAME, **{name: test for names, test in _SEVERAL_NAMES for name in names}}

TESTS_THAT_TAKE_UNDEFINED = frozenset(("defined", "undefined"))
TESTS_THAT_TAKE_UNKNOWN = frozenset(
    (
        *("defined", "undefined", "changed", "change", "failed", "failure", "succeeded", "success"),
        *("successful", "skipped", "skip", "reachable", "unreachable"),
    )
)
