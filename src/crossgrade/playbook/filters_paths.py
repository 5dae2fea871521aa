"""Filters of Ansible's for paths, which are text here, of the machine that crossgrade runs on."""

from __future__ import annotations

import glob
import os.path
import re
from collections.abc import Callable
from typing import Any

from jinja2 import pass_context

from crossgrade.playbook.argument_types import name_of_type
from crossgrade.playbook.filter_error import FilterError
from crossgrade.playbook.limits import bounded_list

_VARIABLE = re.compile(r"\$(?:(\w+)|\{([^}]*)\})", re.ASCII)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise FilterError(f"`{name}` expected a path, got {name_of_type(value)}")
    return value


def _path(name: str, function: Callable[[str], Any]) -> Callable[[Any], Any]:
    def apply(value: Any) -> Any:
        found = function(_text(value, name))
        return str(found) if isinstance(found, str) else list(found)

    return apply


@pass_context
def expandvars(context: Any, value: Any) -> str:
    """`$NAME` and `${NAME}` as the environment has them; a name that is not there stays as it is."""
    environment = context.templar.environment
    return _VARIABLE.sub(lambda found: str(environment.get(found[1] or found[2], found[0])), _text(value, "expandvars"))


def path_join(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and value:
        return os.path.join(*[_text(part, "path_join") for part in value])  # noqa: PTH118 - the filter is this function
    raise FilterError(f"`path_join` expected a list of paths, got {name_of_type(value)}")


def relpath(value: Any, start: str = ".") -> str:
    return os.path.relpath(_text(value, "relpath"), start)


def commonpath(value: Any) -> str:
    if not isinstance(value, list | tuple):
        raise FilterError(f"`commonpath` expected a list of paths, got {name_of_type(value)}")
    return os.path.commonpath([_text(part, "commonpath") for part in value])


def file_glob(value: Any) -> list[str]:
    """The files (not directories) whose paths match, sorted: Ansible gives them in the directory's own order."""
    found = glob.iglob(_text(value, "fileglob"))  # noqa: PTH207 - the pattern may be absolute
    return sorted(path for path in bounded_list(found) if os.path.isfile(path))  # noqa: PTH113 - a path as text


FILTERS: dict[str, Any] = {
    "basename": _path("basename", os.path.basename),
    "commonpath": commonpath,
    "dirname": _path("dirname", os.path.dirname),
    "expanduser": _path("expanduser", os.path.expanduser),
    "expandvars": expandvars,
    "fileglob": file_glob,
    "normpath": _path("normpath", os.path.normpath),
    "path_join": path_join,
    "realpath": _path("realpath", os.path.realpath),
    "relpath": relpath,
    "splitext": _path("splitext", os.path.splitext),
}
