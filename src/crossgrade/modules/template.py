"""template: a file made from a Jinja2 template of the playbook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.modules.file_undo import undo
from crossgrade.modules.files import entry_at, follow
from crossgrade.modules.placing import (
    Placement,
    Source,
    State,
    apply_placement,
    bytes_source,
    find_source,
    look_at_file,
    plan_placement,
)
from crossgrade.modules.refusing import FILE
from crossgrade.playbook.arguments import argument
from crossgrade.playbook.vault import read_sealed

# written with a backslash and a letter, YAML's plain text cannot hold the characters themselves
LINE_ENDS = {"\\n": "\n", "\\r": "\r", "\\r\\n": "\r\n"}

# how templates are read unless they or the task say otherwise
MARKS: Mapping[str, Any] = {
    "block_start_string": "{%",
    "block_end_string": "%}",
    "variable_start_string": "{{",
    "variable_end_string": "}}",
    "comment_start_string": "{#",
    "comment_end_string": "#}",
    "trim_blocks": True,
    "lstrip_blocks": False,
}


@dataclass(frozen=True)
class Arguments:
    """Writes a file from a template, with the variables of the task; block tags take their line end along."""

    src: str = argument(doc="The template (UTF-8), looked for in `templates/` and beside the playbook.")
    dest: str = argument(doc="Where to: a file, or a directory.")
    mode: Any = argument(
        doc='The mode: "0644" (with quotes), u=rw,g=r,o=r, or `preserve`: that of the template.', default=None
    )
    owner: str | None = argument(doc="The user, by name or number.", default=None)
    group: str | None = argument(doc="The group, by name or number.", default=None)
    backup: bool = argument(doc="Keep a copy of the old file beside the new one.", default=False)
    force: bool = argument(doc="Replace a file with another content.", default=True)
    follow: bool = argument(doc="When `dest` is a symlink, write what it leads to.", default=False)
    validate: str | None = argument(
        doc="A program that must accept the new file (`%s`) before it is put in its place.", default=None
    )
    newline_sequence: Literal["\\n", "\\r", "\\r\\n", "\n", "\r", "\r\n"] = argument(
        doc="How lines end in the file.", default="\\n", choices=("\\n", "\\r", "\\r\\n", "\n", "\r", "\r\n")
    )
    output_encoding: str = argument(doc="The encoding of the file.", default="utf-8")
    block_start_string: str = argument(doc="What begins a block tag.", default="{%")
    block_end_string: str = argument(doc="What ends a block tag.", default="%}")
    variable_start_string: str = argument(doc="What begins an expression.", default="{{")
    variable_end_string: str = argument(doc="What ends an expression.", default="}}")
    comment_start_string: str = argument(doc="What begins a comment.", default="{#")
    comment_end_string: str = argument(doc="What ends a comment.", default="#}")
    trim_blocks: bool = argument(doc="A block tag takes the line end after it along.", default=True)
    lstrip_blocks: bool = argument(doc="A block tag takes the blanks before it along.", default=False)
    refused: ClassVar[Mapping[str, str]] = FILE


def inspect(arguments: Arguments, host: HostView) -> State:
    placement = Placement(
        dest=arguments.dest,
        mode=arguments.mode,
        owner=arguments.owner,
        group=arguments.group,
        backup=arguments.backup,
        force=arguments.force,
        follow=arguments.follow,
        validate=arguments.validate,
    )
    return look_at_file(_render(arguments, host), placement, host)


def _render(arguments: Arguments, host: HostView) -> Source:
    path = find_source(arguments.src, "templates", host)
    entry = follow(path, host)
    if entry.predicted:
        return Source(path, path.name, entry.mode, "", "", 0)
    try:
        opened = read_sealed(path)
        text = path.read_text(encoding="utf-8") if opened is None else opened.decode("utf-8")
        rendered = host.template(text, str(path), _marks(arguments))
        line_end = LINE_ENDS.get(arguments.newline_sequence, arguments.newline_sequence)
        content = rendered.replace("\n", line_end).encode(arguments.output_encoding)
    except UnicodeDecodeError as error:
        raise TaskError(f"the template {path} is not UTF-8: {error.reason} at byte {error.start}") from error
    except UnicodeEncodeError as error:
        raise TaskError(f"{path}: {error.object[error.start]!r} does not exist in {error.encoding}") from error
    except LookupError as error:
        raise TaskError(f"there is no encoding {arguments.output_encoding!r}") from error
    return bytes_source(content, path.name, entry_at(path.resolve()).mode, sealed=opened is not None)


def _marks(arguments: Arguments) -> dict[str, Any]:
    """How the template is to be read: only what is unlike the usual, so that a usual template is compiled once."""
    asked = {name: getattr(arguments, name) for name in MARKS}
    return {name: value for name, value in asked.items() if value != MARKS[name]}


def plan(arguments: Arguments, state: State) -> Plan:
    return plan_placement(state, arguments.src)


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    return apply_placement(change, context)


MODULE = Module(
    name="template",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    summary="A file made from a Jinja2 template.",
)
