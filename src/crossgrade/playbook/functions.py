"""The functions that templates can call: `lookup`, `query`, `now`, `undef`."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import pass_context, pass_environment
from jinja2.runtime import Context

from crossgrade.playbook.limits import MAX_TEXT, too_large

LOOKUPS_LATER = frozenset(
    (
        *("pipe", "template", "first_found", "fileglob", "dict", "items", "list", "sequence", "lines", "url"),
        *("password", "ini", "csvfile", "config", "together", "nested", "indexed_items", "random_choice"),
        *("subelements", "varnames", "unvault"),
    )
)


class LookupFailedError(ValueError):
    """A lookup that cannot give its value."""


def _env(context: Any, terms: list[Any], named: dict[str, Any]) -> list[Any]:
    environment = context.templar.environment
    default = named.get("default", "")
    return [environment.get(str(term), default) for term in terms]


def _file(context: Any, terms: list[Any], named: dict[str, Any]) -> list[Any]:
    texts: list[Any] = []
    for term in terms:
        path = _find(context.templar.directories, str(term))
        with path.open("rb") as stream:
            data = stream.read(MAX_TEXT + 1)
        if len(data) > MAX_TEXT:
            raise too_large("the file's text")
        text = data.decode("utf-8")
        if named.get("lstrip"):
            text = text.lstrip()
        texts.append(text.rstrip() if named.get("rstrip", True) else text)
    return texts


def _find(directories: Sequence[Path], name: str) -> Path:
    path = Path(name).expanduser()
    for directory in directories:
        for candidate in (directory / "files" / path, directory / path):
            if candidate.is_file():
                return candidate
    raise LookupFailedError(f"the file {directories[-1] / path} is not there")


def _vars(context: Any, terms: list[Any], named: dict[str, Any]) -> list[Any]:
    from jinja2.utils import missing

    values: list[Any] = []
    for term in terms:
        value = context.templar.resolve(str(term))
        if value is missing:
            value = named["default"] if "default" in named else context.environment.undefined(name=str(term))
        values.append(value)
    return values


LOOKUPS = {"env": _env, "file": _file, "vars": _vars}


def _look_up(context: Context, name: str, terms: list[Any], named: dict[str, Any]) -> Any:
    short = name.removeprefix("ansible.builtin.") if isinstance(name, str) else str(name)
    found = LOOKUPS.get(short)
    if found is None:
        if short in LOOKUPS_LATER:
            raise LookupFailedError(f"Ansible's lookup `{short}` is not supported here yet")
        raise LookupFailedError(f"there is no lookup `{short}`; there are {', '.join(LOOKUPS)}")
    errors = named.pop("errors", "strict")
    try:
        return found(context, terms, named)
    except (OSError, UnicodeDecodeError, LookupFailedError) as error:
        if errors in ("ignore", "warn"):
            return None
        reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise LookupFailedError(f"lookup `{short}`: {reason}") from error


@pass_context
def lookup(context: Context, name: str, *terms: Any, **named: Any) -> Any:
    """One value as it is; several texts are joined by commas. `wantlist=True` gives the list."""
    wants_list = named.pop("wantlist", False)
    found = _look_up(context, name, list(terms), named)
    if wants_list:
        return found or []
    if found is None or len(found) == 1:
        return found[0] if found else None
    return ",".join(found) if found and all(isinstance(value, str) for value in found) else found


@pass_context
def query(context: Context, name: str, *terms: Any, **named: Any) -> Any:
    """A lookup that always gives a list."""
    named["wantlist"] = True
    return lookup(context, name, *terms, **named)


def now(utc: bool = False, fmt: str | None = None) -> Any:
    """The time: with `fmt` as text, as `strftime` has it."""
    zone = datetime.timezone.utc if utc else None
    moment = datetime.datetime.now(zone).replace(tzinfo=None)
    return moment.strftime(fmt) if fmt else moment


@pass_environment
def undef(environment: Any, hint: str | None = None) -> Any:
    """An undefined value: a variable that the user must give."""
    return environment.undefined(hint=hint or "this variable must be given a value")


FUNCTIONS = {"lookup": lookup, "query": query, "q": query, "now": now, "undef": undef}
