"""Filters that read or make text: regular expressions, comments, quoting, and Jinja's own kept within limits."""

from __future__ import annotations

import re
import shlex
from typing import Any

from jinja2.filters import do_center, do_format, do_indent, do_replace

from crossgrade.playbook.argument_types import name_of_type
from crossgrade.playbook.filter_error import FilterError
from crossgrade.playbook.finalize import finalize
from crossgrade.playbook.limits import MAX_TEXT, MAX_WIDTH, check_format, check_replace, too_large


def _flags(ignorecase: bool, multiline: bool) -> int:
    return (re.IGNORECASE if ignorecase else 0) | (re.MULTILINE if multiline else 0)


def compiled(pattern: Any, ignorecase: bool = False, multiline: bool = False) -> re.Pattern[str]:
    try:
        return re.compile(str(pattern), _flags(ignorecase, multiline))
    except re.error as error:
        raise FilterError(f'"{pattern}" is not a valid regular expression: {error}') from error


def regex_search(value: Any, regex: Any, *groups: str, ignorecase: bool = False, multiline: bool = False) -> Any:
    """The first match, or None; with groups (`\\\\1`, `\\\\g<name>`), the list of what they matched."""
    wanted: list[str | int] = []
    for group in groups:
        found = re.fullmatch(r"\\g<(\S+)>|\\(\d+)", group) if isinstance(group, str) else None
        if found is None:
            raise FilterError(f"`regex_search`: a group is written \\\\1 or \\\\g<name>, got {group}")
        wanted.append(found[1] if found[1] is not None else int(found[2]))
    match = compiled(regex, ignorecase, multiline).search(str(value))
    if match is None:
        return None
    try:
        return [match.group(group) for group in wanted] if wanted else match.group()
    except IndexError:
        raise FilterError(f'`regex_search`: "{regex}" has no such group') from None


def regex_findall(value: Any, regex: Any, multiline: bool = False, ignorecase: bool = False) -> list[Any]:
    return compiled(regex, ignorecase, multiline).findall(str(value))


def regex_replace(
    value: Any = "",
    pattern: Any = "",
    replacement: str = "",
    ignorecase: bool = False,
    multiline: bool = False,
    count: int = 0,
    mandatory_count: int = 0,
) -> str:
    text, replacement = str(value), str(replacement)
    if len(replacement) * (len(text) + 1) > MAX_TEXT:
        raise too_large("the text")
    try:
        result, times = compiled(pattern, ignorecase, multiline).subn(replacement, text, count=count)
    except (re.error, IndexError) as error:
        raise FilterError(f'`regex_replace`: "{replacement}" is not valid here: {error}') from error
    if mandatory_count and times != mandatory_count:
        raise FilterError(f'`regex_replace`: "{pattern}" matched {times} times, and not {mandatory_count}')
    return result


def regex_escape(value: Any, re_type: str = "python") -> str:
    """Text as a regular expression that matches it: of Python, or a basic one of POSIX (`grep`, `sed`)."""
    if re_type == "python":
        return re.escape(str(value))
    if re_type == "posix_basic":
        return re.sub(r"([].[^$*\\])", r"\\\1", str(value))
    raise FilterError(f"`regex_escape`: re_type is python or posix_basic, and not {re_type}")


# Of each style: what stands before every line, at the beginning and at the end.
_COMMENTS = {
    "plain": ("# ", "", ""),
    "decoration": ("", "", ""),
    "erlang": ("% ", "", ""),
    "c": ("// ", "", ""),
    "cblock": (" * ", "/*", " */"),
    "xml": (" - ", "<!--", "-->"),
}


def comment(
    text: Any,
    style: str = "plain",
    *,
    decoration: str | None = None,
    beginning: str | None = None,
    end: str | None = None,
    newline: str = "\n",
    prefix: str | None = None,
    prefix_count: int = 1,
    postfix: str | None = None,
    postfix_count: int = 1,
) -> str:
    """Text as a comment of a language; `prefix` and `postfix` are lines before and after it."""
    if not isinstance(text, str):
        raise FilterError(f"`comment` expected text, got {name_of_type(text)}")
    if style not in _COMMENTS:
        raise FilterError(f"`comment`: the style is one of {', '.join(_COMMENTS)}")
    usual = _COMMENTS[style]
    decoration = usual[0] if decoration is None else decoration
    beginning = usual[1] if beginning is None else beginning
    end = usual[2] if end is None else end
    prefix = decoration.rstrip() if prefix is None else prefix
    postfix = decoration.rstrip() if postfix is None else postfix
    if max(prefix_count, postfix_count) > 1000 or len(decoration) * len(text) > MAX_TEXT:
        raise too_large("the comment")
    body = (decoration + text.replace(newline, newline + decoration)).replace(
        decoration + newline, decoration.rstrip() + newline
    )
    before = (beginning + newline if beginning else "") + (prefix + newline if prefix else "") * prefix_count
    after = newline.join([postfix] * postfix_count) if postfix else ""
    return before + body + newline + after + (newline + end if end else "")


def quote(value: Any) -> str:
    """Quoted for a POSIX shell."""
    return shlex.quote("" if value is None else str(value))


def split(value: Any, *arguments: Any, **named: Any) -> list[str]:
    if not isinstance(value, str):
        raise FilterError(f"`split` expected text, got {name_of_type(value)}")
    return value.split(*arguments, **named)


def indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if isinstance(width, str) or not 0 <= width <= 1000:
        if isinstance(width, str) and len(width) <= 1000:
            return str(do_indent(str(value), width, first, blank))
        raise too_large("the indentation")
    return str(do_indent(str(value), width, first, blank))


def center(value: Any, width: int = 80) -> str:
    if width > MAX_WIDTH:
        raise too_large("the text")
    return do_center(str(value), width)


def format_text(value: Any, *arguments: Any, **named: Any) -> str:
    check_format(str(value), arguments, named)
    return do_format(str(value), *arguments, **named)


def string(value: Any) -> str:
    return str(value) if isinstance(value, str) else str(finalize(value))


def _replace(eval_context: Any, value: Any, old: Any, new: Any, count: Any = None) -> str:
    check_replace(str(value), str(old), str(new))
    return str(do_replace(eval_context, str(value), str(old), str(new), count))


_replace.jinja_pass_arg = do_replace.jinja_pass_arg  # type: ignore[attr-defined]  # Jinja's mark on such a filter

FILTERS: dict[str, Any] = {
    "center": center,
    "comment": comment,
    "format": format_text,
    "indent": indent,
    "quote": quote,
    "regex_escape": regex_escape,
    "regex_findall": regex_findall,
    "regex_replace": regex_replace,
    "regex_search": regex_search,
    "replace": _replace,
    "split": split,
    "string": string,
}
