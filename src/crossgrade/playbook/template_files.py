"""Files that are templates: their own options, the variables that only they see, and the files that they bring in."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossgrade.playbook.argument_types import to_bool
from crossgrade.playbook.compiling import as_marks, compiled, environment
from crossgrade.playbook.filter_error import FilterError
from crossgrade.playbook.lookups_files import read
from crossgrade.playbook.variables import Precedence, Scope

if TYPE_CHECKING:
    from jinja2.environment import Template

    from crossgrade.playbook.templating import Templar

HEADER = "#jinja2:"
_TEXTS = frozenset(
    (
        *("block_start_string", "block_end_string", "variable_start_string", "variable_end_string"),
        *("comment_start_string", "comment_end_string", "line_statement_prefix", "line_comment_prefix"),
        "newline_sequence",
    )
)
_SWITCHES = frozenset(("trim_blocks", "lstrip_blocks", "keep_trailing_newline"))


def rendered_parts(templar: Templar, text: str, path: Path | None, given: Mapping[str, Any]) -> tuple[list[Any], str]:
    """What the template puts out, not yet joined, and its text without the line that sets options.

    `path` is that of the file, None for text that lies in none; `given` are options of Jinja.
    """
    options, body = _own_options(text)
    marks = as_marks(_checked({**given, **options}))
    before = templar.including
    templar.including = _places(templar, path)
    try:
        parts, _ = environment(keep_backslashes=False, marks=marks).run(compiled("file", body, marks), templar)
    finally:
        templar.including = before
    return parts, body


def _places(templar: Templar, path: Path | None) -> tuple[Path, ...]:
    """Where `{% include %}` and its like look: beside the template, then in `templates` and beside the playbook."""
    own = () if path is None else (path.parent,)
    return (*own, *(place for folder in templar.directories for place in (folder / "templates", folder)))


def _own_options(text: str) -> tuple[dict[str, Any], str]:
    """The options in a first line such as `#jinja2: trim_blocks: False, lstrip_blocks: True`."""
    if not text.startswith(HEADER):
        return {}, text
    line, _, rest = text.partition("\n")
    options: dict[str, Any] = {}
    for pair in line.removeprefix(HEADER).split(","):
        name, colon, value = pair.partition(":")
        if not colon:
            raise FilterError(f'the first line of the template: "{pair.strip()}" is no `name: value`')
        try:
            options[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            raise FilterError(
                f"the first line of the template: {value.strip()} is no value",
                "Write text in quotes, and True or False.",
            ) from None
    return options, rest


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for name, value in options.items():
        if name in _SWITCHES:
            checked[name] = to_bool(value)
        elif name in _TEXTS and isinstance(value, str) and value:
            checked[name] = value
        else:
            raise FilterError(f'"{name}" is no option of a template, or its value is none')
    return checked


def load(templar: Templar, name: str, marks: Mapping[str, Any]) -> Template | None:
    """The template that another one brings in by this name, None when it is not there.

    Nothing outside the places is brought in: the name is no absolute path, and does not go up.
    """
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return None
    for place in templar.including or _places(templar, None):
        path = place / name
        if path.is_file():
            key = str(path)
            if key not in templar.loaded:
                # anew for each Templar: Jinja keeps in a template what it has imported
                made = environment(keep_backslashes=False, marks=as_marks(marks))
                templar.loaded[key] = made.compile_template(read(path))
            return templar.loaded[key]
    return None


def file_scope(scope: Scope, path: Path, variables: Mapping[str, Any]) -> Scope:
    """The scope in which a template file is expanded: with Ansible's variables about the file, and those given."""
    import datetime
    import os
    import pwd
    import socket

    status = path.stat()
    try:
        owner: Any = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = status.st_uid
    about = {
        "ansible_managed": "Ansible managed",
        "template_destpath": None,
        "template_fullpath": str(path.absolute()),
        "template_host": socket.gethostname() or os.uname().nodename,
        "template_mtime": datetime.datetime.fromtimestamp(status.st_mtime),  # noqa: DTZ006 - as Ansible has it
        "template_path": str(path),
        "template_run_date": datetime.datetime.now(),  # noqa: DTZ005 - as Ansible has it
        "template_uid": owner,
    }
    scope = scope.with_layer(Precedence.MAGIC, about, templated=False)
    return scope.with_layer(Precedence.LOOP, dict(variables), templated=False)
