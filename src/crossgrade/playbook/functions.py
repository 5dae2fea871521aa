"""The functions that templates can call: `lookup`, `query`, `now`, `undef`."""

from __future__ import annotations

import datetime
from typing import Any

from jinja2 import pass_context, pass_environment
from jinja2.runtime import Context

from crossgrade.playbook.markers import DependsOnUnknown, Unknown


@pass_context
def lookup(context: Context, name: str, *terms: Any, **named: Any) -> Any:
    """One value as it is; several texts are joined by commas. `wantlist=True` gives the list."""
    from crossgrade.playbook.lookups import look_up

    wants_list = named.pop("wantlist", False)
    try:
        found = look_up(context, name, list(terms), named)
    except DependsOnUnknown as unknown:
        return Unknown(unknown.origin)
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
