"""Lookups that read files of the playbook: as text, as templates, by key, by pattern."""

from __future__ import annotations

import configparser
import csv
import io
import os
import re
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crossgrade.playbook.argument_types import name_of_type, to_bool
from crossgrade.playbook.filter_error import FilterError
from crossgrade.playbook.limits import MAX_TEXT, too_large
from crossgrade.playbook.markers import DependsOnUnknown
from crossgrade.playbook.vault import read_sealed
from crossgrade.playbook.vault_format import is_vault

MAX_PASSWORD = 10_000  # characters


def find(context: Any, name: Any, folder: str = "files") -> Path:
    """A file in `folder` of the role or the playbook, or beside it. Raises FilterError."""
    if not isinstance(name, str):
        raise FilterError(f"the name of a file is text, got {name_of_type(name)}")
    if not name:
        raise FilterError("the name of a file is empty")
    path = Path(name).expanduser()
    for directory in context.templar.directories:
        for candidate in (directory / folder / path, directory / path) if folder else (directory / path,):
            _not_foreseen(context, candidate)
            if candidate.is_file():
                return Path(candidate)
    raise FilterError(f"the file {context.templar.directories[-1] / path} is not there")


def _not_foreseen(context: Any, path: Path) -> None:
    """Raises DependsOnUnknown in a plan for what an earlier task makes, changes or removes."""
    if context.templar.foreseen(str(path)) is not None:
        raise DependsOnUnknown(f"{path}, which an earlier task makes")


def read(path: Path, encoding: str = "utf-8") -> str:
    """The text of a file, opened when it is encrypted. Raises FilterError, OSError, LimitExceeded, VaultError."""
    with path.open("rb") as stream:
        data = stream.read(MAX_TEXT + 1)
    if len(data) > MAX_TEXT:
        raise too_large("the file's text")
    if is_vault(data):
        data = read_sealed(path) or b""
    try:
        return data.decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        raise FilterError(f"{path} is no text in {encoding}") from error


def _file(context: Any, terms: list[Any], options: dict[str, Any]) -> list[Any]:
    texts: list[Any] = []
    for term in terms:
        text = read(find(context, term))
        if to_bool(options.get("lstrip", False)):
            text = text.lstrip()
        texts.append(text.rstrip() if to_bool(options.get("rstrip", True)) else text)
    return texts


def _unvault(context: Any, terms: list[Any], _: dict[str, Any]) -> list[Any]:
    return [read(find(context, term)) for term in terms]


_MARKS = ("variable_start_string", "variable_end_string", "comment_start_string", "comment_end_string", "trim_blocks")


def _template(context: Any, terms: list[Any], options: dict[str, Any]) -> list[Any]:
    variables = options.get("template_vars", {})
    if not isinstance(variables, Mapping):
        raise FilterError(f"`template_vars` is a mapping, got {name_of_type(variables)}")
    marks = {name: options[name] for name in _MARKS if name in options}
    values = []
    for term in terms:
        path = find(context, term, "templates")
        values.append(context.templar.render_value(read(path), path, {"template_path": term, **variables}, marks))
    return values


def _file_glob(context: Any, terms: list[Any], _: dict[str, Any]) -> list[Any]:
    """The files (not directories) that match, sorted; of several places those of the first that has any."""
    found: list[Any] = []
    for term in terms:
        if not isinstance(term, str):
            raise FilterError(f"a pattern is text, got {name_of_type(term)}")
        pattern = Path(term).expanduser()
        for directory in context.templar.directories:
            files = _matching(directory / "files", pattern) or _matching(directory, pattern)
            if files:
                found += files
                break
    return found


def _matching(directory: Path, pattern: Path) -> list[str]:
    import glob

    paths = glob.glob(str(directory / pattern))  # noqa: PTH207 - the pattern may be absolute
    return sorted(path for path in paths if os.path.isfile(path))  # noqa: PTH113 - a path as text


def _first_found(context: Any, terms: list[Any], options: dict[str, Any]) -> list[Any]:
    names, skip = _wanted(terms, options)
    for name in names:
        path = Path(name).expanduser()
        for directory in context.templar.directories:
            _not_foreseen(context, directory / path)
            if (directory / path).exists():
                return [os.path.normpath(directory / path)]
    if skip:
        return []
    raise FilterError(
        f"none of these is there: {', '.join(names) or 'nothing was named'}",
        "With skip=true, or errors='ignore', it is no error.",
    )


def _wanted(terms: list[Any], options: dict[str, Any]) -> tuple[list[str], bool]:
    """The paths to try, and whether it is no error when none is there."""
    names: list[str] = []
    skip = to_bool(options.get("skip", False))
    for term in [options, *terms]:
        if isinstance(term, Mapping):
            skip = skip or to_bool(term.get("skip", False))
            files, paths = _split(term.get("files")), _split(term.get("paths"))
            names += [os.path.join(place, file) for file in files for place in paths or [""]]  # noqa: PTH118 - as text
        elif isinstance(term, list | tuple):
            more, also_skip = _wanted(list(term), {})
            names, skip = names + more, skip or also_skip
        else:
            names.append(str(term))
    return names, skip


def _split(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [part for item in value for part in _split(item)]
    return [part for part in re.split(r"[,;]", str(value)) if part]


def with_options(term: Any, options: Mapping[str, Any], known: frozenset[str]) -> tuple[str, dict[str, Any]]:
    """`KEY name=value …` as the key and its options; the key may hold spaces. Raises FilterError."""
    if not isinstance(term, str):
        raise FilterError(f"a key is text, got {name_of_type(term)}")
    words = term.split(" ")
    pairs = [word.partition("=") for word in words[1:] if "=" in word]
    wrong = [name for name, _, _ in pairs if name not in known]
    if wrong:
        raise FilterError(f"there is no option `{wrong[0]}`; there are {', '.join(sorted(known))}")
    key = " ".join([words[0], *(word for word in words[1:] if "=" not in word)])
    return key, {**options, **{name: value for name, _, value in pairs}}


_INI = frozenset(
    (
        *("type", "file", "section", "re", "encoding", "default", "case_sensitive", "allow_no_value", "allow_none"),
        "interpolation",
    )
)


def _ini(context: Any, terms: list[Any], options: dict[str, Any]) -> list[Any]:
    values: list[Any] = []
    for term in terms:
        key, chosen = with_options(term, options, _INI)
        interpolation = configparser.BasicInterpolation() if to_bool(chosen.get("interpolation", True)) else None
        parser = configparser.ConfigParser(
            allow_no_value=to_bool(chosen.get("allow_no_value", chosen.get("allow_none", False))),
            interpolation=interpolation,
        )
        if to_bool(chosen.get("case_sensitive", False)):
            parser.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to do it
        text = read(find(context, str(chosen.get("file", "ansible.ini"))), str(chosen.get("encoding", "utf-8")))
        section = str(chosen.get("section", "global"))
        if chosen.get("type", "ini") == "properties":
            section = "java_properties"
            text = f"[{section}]\n{text}"
        values += _ini_values(parser, text, section, key, chosen)
    return values


def _ini_values(
    parser: configparser.ConfigParser, text: str, section: str, key: str, chosen: Mapping[str, Any]
) -> list[Any]:
    try:
        parser.read_string(text)
        if not parser.has_section(section):
            raise FilterError(f"there is no section [{section}]; there are {', '.join(parser.sections()) or 'none'}")
        if to_bool(chosen.get("re", False)):
            return [value for name, value in parser.items(section) if re.match(key, name)]
        return [parser.get(section, key) if parser.has_option(section, key) else chosen.get("default", "")]
    except (configparser.Error, re.error) as error:
        raise FilterError(str(error).split("\n", maxsplit=1)[0]) from error


_CSV = frozenset(("col", "keycol", "default", "delimiter", "file", "encoding"))


def _csv_file(context: Any, terms: list[Any], options: dict[str, Any]) -> list[Any]:
    if not terms:
        raise FilterError("the key to look for is missing")
    values: list[Any] = []
    for term in terms:
        key, chosen = with_options(term, options, _CSV)
        delimiter = str(chosen.get("delimiter", "TAB"))
        delimiter = "\t" if delimiter in ("TAB", "\\t") else delimiter
        text = read(find(context, str(chosen.get("file", "ansible.csv"))), str(chosen.get("encoding", "utf-8")))
        try:
            column, key_column = int(chosen.get("col", 1)), int(chosen.get("keycol", 0))
            rows = csv.reader(io.StringIO(text), delimiter=delimiter)
            found = next((row[column] for row in rows if row and row[key_column] == key), chosen.get("default"))
        except (csv.Error, IndexError, TypeError, ValueError) as error:
            raise FilterError(f"the file does not fit these options: {error}") from error
        if found is not None:
            values.append(found)
    return values


_PASSWORD = frozenset(("length", "encrypt", "chars", "ident", "seed"))


def _password(context: Any, terms: list[Any], options: dict[str, Any]) -> list[Any]:
    return [_one_password(context, *with_options(term, options, _PASSWORD)) for term in terms]


def _one_password(context: Any, name: str, options: dict[str, Any]) -> str:
    from random import Random, SystemRandom

    if options.get("encrypt"):
        raise FilterError(
            "`encrypt` needs a library for password hashes, which crossgrade does not bring",
            "Make the hash once (`openssl passwd -6`) and keep it in a variable.",
        )
    length, characters = int(options.get("length", 20)), _characters(options.get("chars"))
    if not 0 <= length <= MAX_PASSWORD or not characters:
        raise FilterError(f"a password has up to {MAX_PASSWORD} characters, of at least one kind")
    if name != os.devnull:
        path = context.templar.directory / Path(name).expanduser()
        if path.exists():
            lines = read(path).splitlines()
            return lines[0].partition(" salt=")[0] if lines else ""
        raise FilterError(
            f"the file {path} is not there, and a lookup writes none: it could not be taken back",
            "Make it with a task: `copy` with `content: \"{{ lookup('password', '/dev/null') }}\"` and `force: false`.",
        )
    if options.get("seed") is None and context.templar.foresees:
        raise DependsOnUnknown("the password that will be drawn")
    seed = options.get("seed")
    source = SystemRandom() if seed is None else Random(seed)  # noqa: S311 - repeatable on purpose
    return "".join(source.choice(characters) for _ in range(length))


def _characters(given: Any) -> str:
    """`chars`: names of Python's `string` module, or characters; in text, `,,` stands for a comma."""
    if given is None:
        return string.ascii_letters + string.digits + ".,:-_"
    parts = given
    if isinstance(given, str):
        parts = ([","] if ",," in given else []) + [part for part in given.split(",") if part]
    names = {name for name in dir(string) if name.islower() and isinstance(getattr(string, name), str)}
    return "".join(getattr(string, str(part)) if str(part) in names else str(part) for part in parts)


LOOKUPS: dict[str, Any] = {
    "csvfile": _csv_file,
    "file": _file,
    "fileglob": _file_glob,
    "first_found": _first_found,
    "ini": _ini,
    "password": _password,
    "template": _template,
    "unvault": _unvault,
}
