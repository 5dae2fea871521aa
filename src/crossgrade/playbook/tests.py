"""Ansible's tests (`is …`), beside those that Jinja brings."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from jinja2 import pass_context
from jinja2.runtime import Undefined

from crossgrade.playbook.argument_types import FALSE_WORDS, TRUE_WORDS, name_of_type
from crossgrade.playbook.filter_error import FilterError
from crossgrade.playbook.markers import DependsOnUnknown, Unknown
from crossgrade.playbook.versions import compare_versions


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
        raise FilterError(f"`is {test}` tests the result of a task, and this is {name_of_type(result)}")
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


def finished(result: Any) -> bool:
    """Whether a task that was started and not waited for has ended; any other has."""
    found = _part(result, "finished", "finished")
    return found is None or bool(found)


def started(result: Any) -> bool:
    found = _part(result, "started", "started")
    return found is None or bool(found)


def timed_out(result: Any) -> bool:
    found = _part(result, "timedout", "timedout")
    if found and not isinstance(found, Mapping):
        raise FilterError(f"`is timedout` expected a mapping at `timedout`, got {name_of_type(found)}")
    return bool(found and found.get("period"))


def _regex(method: str) -> Callable[..., bool]:
    def test(value: Any, pattern: Any = "", ignorecase: bool = False, multiline: bool = False) -> bool:
        from crossgrade.playbook.filters_text import compiled

        if not isinstance(pattern, str):
            raise FilterError(f"`{method}` expected a regular expression, got {name_of_type(pattern)}")
        return bool(getattr(compiled(pattern, ignorecase, multiline), method)(str(value)))

    return test


def regex(
    value: Any, pattern: Any = "", ignorecase: bool = False, multiline: bool = False, match_type: str = "search"
) -> bool:
    if match_type not in ("search", "match", "fullmatch"):
        raise FilterError(f"`regex`: match_type is search, match or fullmatch, and not {match_type}")
    return _regex(match_type)(value, pattern, ignorecase, multiline)


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


def _file(test: Callable[[str], bool], known_as: str = "") -> Callable[[Any, Any], Any]:
    """`known_as` is what a plan's foreseen paths call that which is tested."""

    @pass_context
    def apply(context: Any, value: Any) -> Any:
        if value is None:
            raise FilterError("a path was expected, got nothing")
        foreseen = context.templar.foreseen(str(value)) if known_as else None
        if foreseen is None:
            return test(str(value))
        if not foreseen.get("exists", True):
            return False
        later = Unknown(f"{value}, which an earlier task makes")
        leads_elsewhere = foreseen.get("islnk") and known_as != "islnk"
        return later if leads_elsewhere else foreseen.get(known_as, later)

    return apply


def all_true(value: Iterable[Any]) -> bool:
    return all(value)


def any_true(value: Iterable[Any]) -> bool:
    return any(value)


def vault_encrypted(_value: Any) -> bool:
    """Always false: a value that was encrypted is text when a template sees it."""
    return False


def vaulted_file(value: Any) -> bool:
    from crossgrade.playbook.vault_format import MARK, is_vault

    with Path(str(value)).open("rb") as stream:
        return is_vault(stream.read(len(MARK)))


def _address(value: Any, schemes: Any) -> SplitResult | None:
    """The address when it is one, of one of the schemes when they are given."""
    if not isinstance(value, str):
        return None
    try:
        address = urlsplit(value)
    except ValueError:
        return None
    wanted = [schemes] if isinstance(schemes, str) else list(schemes or ())
    return address if not wanted or address.scheme in wanted else None


def is_uri(value: Any, schemes: Any = None) -> bool:
    return _address(value, schemes) is not None


def is_url(value: Any, schemes: Any = None) -> bool:
    address = _address(value, schemes)
    return address is not None and (bool(address.netloc) or address.scheme == "file")


def is_urn(value: Any) -> bool:
    return _address(value, "urn") is not None


def same_file(value: Any, other: Any) -> bool:
    return os.path.samefile(str(value), str(other))  # noqa: PTH121 - raises the same OSError, without a Path


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


_ONE_NAME: dict[str, Any] = {
    "all": all_true,
    "any": any_true,
    "contains": contains,
    "defined": defined,
    "exists": _file(os.path.exists, "exists"),
    "falsy": falsy,
    "in": is_in,
    "link_exists": _file(os.path.lexists, "exists"),
    "match": _regex("match"),
    "finished": finished,
    "reachable": reachable,
    "regex": regex,
    "search": _regex("search"),
    "started": started,
    "timedout": timed_out,
    "truthy": truthy,
    "undefined": undefined,
    "unreachable": unreachable,
    "uri": is_uri,
    "url": is_url,
    "urn": is_urn,
    "vault_encrypted": vault_encrypted,
    "vaulted_file": vaulted_file,
}
_SEVERAL_NAMES: list[tuple[tuple[str, ...], Any]] = [
    (("abs", "is_abs"), _file(os.path.isabs)),
    (("changed", "change"), changed),
    (("directory", "is_dir"), _file(os.path.isdir, "isdir")),
    (("failed", "failure"), failed),
    (("file", "is_file"), _file(os.path.isfile, "isreg")),
    (("link", "is_link"), _file(os.path.islink, "islnk")),
    (("mount", "is_mount"), _file(os.path.ismount)),
    (("nan", "isnan"), is_nan),
    (("same_file", "is_same_file"), same_file),
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
        *("successful", "skipped", "skip", "reachable", "unreachable", "finished", "started", "timedout"),
    )
)
