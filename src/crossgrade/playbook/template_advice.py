"""What Jinja's complaints about the syntax of a template mean, and how to mend it."""

from __future__ import annotations

import re

from crossgrade.playbook.suggest import did_you_mean

_UNKNOWN = re.compile(r"No (filter|test) named '([^']*)'")
_UNCLOSED = re.compile(r"unexpected '[\]})]+', expected '([\]})]+)'")


def advice(said: str, text: str) -> tuple[str, str]:
    """Message and remedy for a syntax error of Jinja's; its own words where nothing better is known."""
    unknown = _UNKNOWN.search(said)
    if unknown:
        return f"there is no {unknown[1]} `{unknown[2]}`", _similar(unknown[1], unknown[2])
    if "expected 'end of print statement'" in said and "end of template" in said:
        return "`{{` is opened and never closed", "Add the `}}`."
    if "expected 'end of statement block'" in said and "end of template" in said:
        return "`{%` is opened and never closed", "Add the `%}`."
    if "unexpected '}'" in said:
        return "`{{` is closed by a single `}`", "Write `}}`."
    unclosed = _UNCLOSED.search(said)
    if unclosed:
        return f"a `{unclosed[1]}` is missing", "Close each bracket before the `}}`."
    for wrong, right in (("&&", "and"), ("||", "or")):
        if wrong in text:
            return f"`{wrong}` is no operator", f"Write `{right}`."
    compared = any(words in said for words in ("more after the end", "expected token", "got '='"))
    if compared and re.search(r"(?<![=!<>])=(?!=)", text):
        return "a single `=` compares nothing", "Write `==`."
    if re.search(r"(^|[\s(])!(?!=)", text) and "unexpected char" in said:
        return "`!` is no operator", "Write `not`."
    return f"not a valid template: {said}", ""


def _similar(kind: str, name: str) -> str:
    from crossgrade.playbook.jinja_environment import PlaybookEnvironment

    environment = PlaybookEnvironment(keep_backslashes=False)
    return did_you_mean(name, [str(each) for each in (environment.filters if kind == "filter" else environment.tests)])
