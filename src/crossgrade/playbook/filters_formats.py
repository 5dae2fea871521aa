"""Filters of Ansible's that read or write a format: JSON, YAML, Base64, digests, times, addresses."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import time
import uuid
from typing import Any
from urllib.parse import unquote_plus, urlsplit

from crossgrade.playbook.argument_types import name_of_type
from crossgrade.playbook.filter_error import FilterError
from crossgrade.playbook.finalize import finalize
from crossgrade.playbook.limits import MAX_WIDTH, check_format, too_large

# The namespace of `to_uuid` (Ansible's documentation of the filter names it).
_NAMESPACE = "361E6D51-FAEC-444A-9079-341386DA8E2E"


def to_json(value: Any, **named: Any) -> str:
    return _dump_json(value, named)


def to_nice_json(value: Any, indent: int = 4, sort_keys: bool = True, **named: Any) -> str:
    return _dump_json(value, {**named, "indent": indent, "sort_keys": sort_keys, "separators": (",", ": ")})


_JSON_OPTIONS = frozenset(("indent", "sort_keys", "separators", "ensure_ascii", "skipkeys", "allow_nan"))
_WITHOUT_EFFECT = ("profile", "preprocess_unsafe", "vault_to_text")  # there are no tagged values here


def _dump_json(value: Any, options: dict[str, Any]) -> str:
    options = {name: value for name, value in options.items() if name not in _WITHOUT_EFFECT}
    wrong = set(options) - _JSON_OPTIONS
    if wrong:
        raise FilterError(f"`to_json` has no option {', '.join(sorted(wrong))}")
    indent = options.get("indent")
    if isinstance(indent, int) and indent > 100:
        raise too_large("the text")
    try:
        return json.dumps(finalize(value), default=str, **options)
    except (TypeError, ValueError) as error:
        raise FilterError(f"this cannot be written as JSON: {error}") from error


def from_json(value: Any) -> Any:
    if not isinstance(value, str):
        raise FilterError(f"`from_json` expected text, got {name_of_type(value)}")
    try:
        return json.loads(value)
    except ValueError as error:
        raise FilterError(f"this text is not JSON: {error}") from error


def to_yaml(value: Any, *, default_flow_style: bool | None = None, **named: Any) -> str:
    import yaml

    options = {"indent", "width", "sort_keys", "explicit_start", "explicit_end", "default_style", "line_break"}
    wrong = set(named) - options - {"allow_unicode"}
    if wrong:
        raise FilterError(f"`to_yaml` has no option {', '.join(sorted(wrong))}")
    text: str = yaml.dump(
        finalize(value),
        Dumper=yaml.SafeDumper,
        default_flow_style=default_flow_style,
        **{"allow_unicode": True, **named},
    )
    return text.removesuffix("...\n") if text.endswith("\n...\n") else text  # the mark after a plain scalar


def to_nice_yaml(value: Any, indent: int = 4, *, default_flow_style: bool = False, **named: Any) -> str:
    return to_yaml(value, indent=indent, default_flow_style=default_flow_style, **named)


def from_yaml(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, str):
        raise FilterError(f"`from_yaml` expected text, got {name_of_type(value)}")
    return _read_yaml(value)


def _read_yaml(text: str) -> Any:
    from crossgrade.errors import PlaybookError
    from crossgrade.playbook.yamltext import parse_yaml

    try:
        return parse_yaml(text, "the text").root.value
    except PlaybookError as error:
        raise FilterError(f"this text is not YAML: {error.message}") from error


def from_yaml_all(value: Any) -> list[Any]:
    """The documents of a text, one after the other."""
    import yaml

    if value is None:
        return []
    if not isinstance(value, str):
        raise FilterError(f"`from_yaml_all` expected text, got {name_of_type(value)}")
    try:
        starts = [
            (event.start_mark.index, event.start_mark.line)
            for event in yaml.parse(value, Loader=yaml.SafeLoader)
            if isinstance(event, yaml.DocumentStartEvent) and event.start_mark is not None
        ]
    except yaml.YAMLError as error:
        raise FilterError(f"this text is not YAML: {error}") from error
    ends = [*(index for index, _ in starts[1:]), len(value)]
    # with empty lines before it, so that an error names the line of the whole text
    return [_read_yaml("\n" * line + value[index:end]) for (index, line), end in zip(starts, ends, strict=False)]


def b64encode(value: Any, encoding: str = "utf-8", urlsafe: bool = False) -> str:
    data = str(value).encode(encoding)
    return (base64.urlsafe_b64encode(data) if urlsafe else base64.b64encode(data)).decode("ascii")


def b64decode(value: Any, encoding: str = "utf-8", urlsafe: bool = False) -> str:
    data = str(value).encode("ascii")
    try:
        return (base64.urlsafe_b64decode(data) if urlsafe else base64.b64decode(data)).decode(encoding)
    except UnicodeDecodeError:
        raise FilterError(f"`b64decode`: what comes out is no text in {encoding}") from None


def hash_text(value: Any, hashtype: str = "sha1") -> str:
    """The digest of a text, in hexadecimal."""
    try:
        digest = hashlib.new(hashtype, usedforsecurity=False)
    except (ValueError, TypeError) as error:
        raise FilterError(f'`hash`: "{hashtype}" is not supported') from error
    digest.update(str(value).encode())
    return digest.hexdigest()


def sha1(value: Any) -> str:
    return hash_text(value)


def md5(value: Any) -> str:
    return hash_text(value, "md5")


def to_uuid(value: Any, namespace: str = _NAMESPACE) -> str:
    """The same UUID (of version 5) for the same text."""
    try:
        space = uuid.UUID(str(namespace))
    except ValueError:
        raise FilterError(f'`to_uuid`: the namespace "{namespace}" is no UUID') from None
    return str(uuid.uuid5(space, str(value)))


def strftime(string_format: Any, second: Any = None, utc: bool = False) -> str:
    """A time, in seconds since 1970 (now, when not given), as the format writes it."""
    if not isinstance(string_format, str):
        raise FilterError(f"`strftime` expected a format, got {name_of_type(string_format)}")
    check_format(string_format, ())
    if len(string_format) > MAX_WIDTH:
        raise too_large("the text")
    try:
        seconds = None if second is None else float(second)
        return time.strftime(string_format, time.gmtime(seconds) if utc else time.localtime(seconds))
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise FilterError(f"`strftime`: {second} is no time in seconds: {error}") from error


def to_datetime(string: Any, format: str = "%Y-%m-%d %H:%M:%S") -> datetime.datetime:  # noqa: A002 - Ansible's name
    """A time that another one can be taken from: `(b | to_datetime - a | to_datetime).total_seconds()`."""
    try:
        return datetime.datetime.strptime(string, format)  # noqa: DTZ007 - the text names no zone
    except (TypeError, ValueError) as error:
        raise FilterError(f"`to_datetime`: {error}") from error


_PARTS = ("fragment", "hostname", "netloc", "password", "path", "port", "query", "scheme", "username")


def url_split(value: Any, query: str = "", alias: str = "urlsplit") -> Any:  # noqa: ARG001 - Ansible's arguments
    """The parts of an address, or the one that `query` names."""
    if not isinstance(value, str):
        raise FilterError(f"`urlsplit` expected an address, got {name_of_type(value)}")
    try:
        address = urlsplit(value)
        parts = {name: getattr(address, name) for name in _PARTS}
    except ValueError as error:
        raise FilterError(f'`urlsplit`: "{value}" is no address: {error}') from error
    if not query:
        return parts
    if query not in parts:
        raise FilterError(f'`urlsplit`: there is no part "{query}"; there are {", ".join(_PARTS)}')
    return parts[query]


def url_decode(value: Any) -> str:
    if not isinstance(value, str):
        raise FilterError(f"`urldecode` expected text, got {name_of_type(value)}")
    return unquote_plus(value)


FILTERS: dict[str, Any] = {
    "b64decode": b64decode,
    "b64encode": b64encode,
    "checksum": sha1,
    "from_json": from_json,
    "from_yaml": from_yaml,
    "from_yaml_all": from_yaml_all,
    "hash": hash_text,
    "md5": md5,
    "sha1": sha1,
    "strftime": strftime,
    "to_datetime": to_datetime,
    "to_json": to_json,
    "to_nice_json": to_nice_json,
    "to_nice_yaml": to_nice_yaml,
    "to_uuid": to_uuid,
    "to_yaml": to_yaml,
    "urldecode": url_decode,
    "urlsplit": url_split,
}
