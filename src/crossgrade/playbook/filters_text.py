"""Filters that read or make text: regular expressions, paths, JSON, YAML, Base64, hashes, quoting."""

from __future__ import annotations

import base64
import hashlib
import json
import os.path
import re
import shlex
from typing import Any

from jinja2.filters import do_center, do_format, do_indent, do_replace

from crossgrade.playbook.argument_types import name_of_type
from crossgrade.playbook.finalize import finalize
from crossgrade.playbook.limits import MAX_TEXT, MAX_WIDTH, check_format, check_replace, too_large


class TextFilterError(ValueError):
    """A filter that got what it cannot work with."""


def _flags(ignorecase: bool, multiline: bool) -> int:
    return (re.IGNORECASE if ignorecase else 0) | (re.MULTILINE if multiline else 0)


def compiled(pattern: Any, ignorecase: bool = False, multiline: bool = False) -> re.Pattern[str]:
    try:
        return re.compile(str(pattern), _flags(ignorecase, multiline))
    except re.error as error:
        raise TextFilterError(f'"{pattern}" is not a valid regular expression: {error}') from error


def regex_search(value: Any, regex: Any, *groups: str, ignorecase: bool = False, multiline: bool = False) -> Any:
    """The first match, or None; with groups (`\\\\1`, `\\\\g<name>`), the list of what they matched."""
    wanted: list[str | int] = []
    for group in groups:
        found = re.fullmatch(r"\\g<(\S+)>|\\(\d+)", group) if isinstance(group, str) else None
        if found is None:
            raise TextFilterError(f"`regex_search`: a group is written \\\\1 or \\\\g<name>, got {group}")
        wanted.append(found[1] if found[1] is not None else int(found[2]))
    match = compiled(regex, ignorecase, multiline).search(str(value))
    if match is None:
        return None
    try:
        return [match.group(group) for group in wanted] if wanted else match.group()
    except IndexError:
        raise TextFilterError(f'`regex_search`: "{regex}" has no such group') from None


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
        raise TextFilterError(f'`regex_replace`: "{replacement}" is not valid here: {error}') from error
    if mandatory_count and times != mandatory_count:
        raise TextFilterError(f'`regex_replace`: "{pattern}" matched {times} times, and not {mandatory_count}')
    return result


def regex_escape(value: Any) -> str:
    return re.escape(str(value))


def to_json(value: Any, **named: Any) -> str:
    named.pop("profile", None)
    return _dump_json(value, named)


def to_nice_json(value: Any, indent: int = 4, sort_keys: bool = True, **named: Any) -> str:
    named.pop("profile", None)
    return _dump_json(value, {**named, "indent": indent, "sort_keys": sort_keys, "separators": (",", ": ")})


_JSON_OPTIONS = frozenset(("indent", "sort_keys", "separators", "ensure_ascii", "skipkeys", "allow_nan"))


def _dump_json(value: Any, options: dict[str, Any]) -> str:
    wrong = set(options) - _JSON_OPTIONS
    if wrong:
        raise TextFilterError(f"`to_json` has no option {', '.join(sorted(wrong))}")
    indent = options.get("indent")
    if isinstance(indent, int) and indent > 100:
        raise too_large("the text")
    try:
        return json.dumps(finalize(value), default=str, **options)
    except (TypeError, ValueError) as error:
        raise TextFilterError(f"this cannot be written as JSON: {error}") from error


def from_json(value: Any) -> Any:
    if not isinstance(value, str):
        raise TextFilterError(f"`from_json` expected text, got {name_of_type(value)}")
    try:
        return json.loads(value)
    except ValueError as error:
        raise TextFilterError(f"this text is not JSON: {error}") from error


def to_yaml(value: Any, *, default_flow_style: bool | None = None, **named: Any) -> str:
    import yaml

    options = {"indent", "width", "sort_keys", "explicit_start", "explicit_end", "default_style", "line_break"}
    wrong = set(named) - options - {"allow_unicode"}
    if wrong:
        raise TextFilterError(f"`to_yaml` has no option {', '.join(sorted(wrong))}")
    text: str = yaml.dump(
        finalize(value),
        Dumper=yaml.SafeDumper,
        default_flow_style=default_flow_style,
        **{"allow_unicode": True, **named},
    )
    return text


def to_nice_yaml(value: Any, indent: int = 4, *, default_flow_style: bool = False, **named: Any) -> str:
    return to_yaml(value, indent=indent, default_flow_style=default_flow_style, **named)


def from_yaml(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TextFilterError(f"`from_yaml` expected text, got {name_of_type(value)}")
    from crossgrade.errors import PlaybookError
    from crossgrade.playbook.yamltext import parse_yaml

    try:
        return parse_yaml(value, "the text").root.value
    except PlaybookError as error:
        raise TextFilterError(f"this text is not YAML: {error.message}") from error


def b64encode(value: Any, encoding: str = "utf-8", urlsafe: bool = False) -> str:
    data = str(value).encode(encoding)
    return (base64.urlsafe_b64encode(data) if urlsafe else base64.b64encode(data)).decode("ascii")


def b64decode(value: Any, encoding: str = "utf-8", urlsafe: bool = False) -> str:
    data = str(value).encode("ascii")
    return (base64.urlsafe_b64decode(data) if urlsafe else base64.b64decode(data)).decode(encoding)


def hash_text(value: Any, hashtype: str = "sha1") -> str:
    """The digest of a text, in hexadecimal."""
    try:
        digest = hashlib.new(hashtype, usedforsecurity=False)
    except (ValueError, TypeError) as error:
        raise TextFilterError(f'`hash`: "{hashtype}" is not supported') from error
    digest.update(str(value).encode())
    return digest.hexdigest()


def quote(value: Any) -> str:
    """Quoted for a POSIX shell."""
    return shlex.quote("" if value is None else str(value))


def split(value: Any, *arguments: Any) -> list[str]:
    if not isinstance(value, str):
        raise TextFilterError(f"`split` expected text, got {name_of_type(value)}")
    return value.split(*arguments)


def path_join(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return os.path.join(*[str(part) for part in value])  # noqa: PTH118 - the filter is this function
    raise TextFilterError(f"`path_join` expected a list, got {name_of_type(value)}")


def relpath(value: Any, start: str = ".") -> str:
    return os.path.relpath(str(value), start)


def splitext(value: Any) -> list[str]:
    return list(os.path.splitext(str(value)))  # noqa: PTH122 - the filter is this function


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


def _path(function: Any) -> Any:
    def apply(value: Any) -> str:
        return str(function(str(value)))

    return apply


_replace.jinja_pass_arg = do_replace.jinja_pass_arg  # type: ignore[attr-defined]  # Jinja's mark on such a filter

FILTERS: dict[str, Any] = {
    "b64decode": b64decode,
    "b64encode": b64encode,
    "basename": _path(os.path.basename),
    "center": center,
    "checksum": hash_text,
    "dirname": _path(os.path.dirname),
    "expanduser": _path(os.path.expanduser),
    "expandvars": _path(os.path.expandvars),
    "format": format_text,
    "from_json": from_json,
    "from_yaml": from_yaml,
    "hash": hash_text,
    "indent": indent,
    "md5": lambda value: hash_text(value, "md5"),
    "normpath": _path(os.path.normpath),
    "path_join": path_join,
    "quote": quote,
    "realpath": _path(os.path.realpath),
    "regex_escape": regex_escape,
    "regex_findall": regex_findall,
    "regex_replace": regex_replace,
    "regex_search": regex_search,
    "relpath": relpath,
    "replace": _replace,
    "sha1": hash_text,
    "split": split,
    "splitext": splitext,
    "string": string,
    "to_json": to_json,
    "to_nice_json": to_nice_json,
    "to_nice_yaml": to_nice_yaml,
    "to_yaml": to_yaml,
}
