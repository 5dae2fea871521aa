"""`doc`: what a name of the playbook language does, with an example to copy."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from crossgrade.commands.common import guarded
from crossgrade.commands.language import KINDS, Word, words
from crossgrade.errors import ExitCode, WrongOptionsError
from crossgrade.modules import NAMES, load_module
from crossgrade.modules.guide import ALWAYS, guide_of
from crossgrade.playbook.describe import ArgumentDescription, describe_arguments
from crossgrade.playbook.schema import PREFIXES
from crossgrade.playbook.statements import STATEMENTS
from crossgrade.playbook.suggest import did_you_mean

Options = Mapping[str, Any]
_STATES = {
    "same": "as in Ansible",
    "different": "not quite as in Ansible",
    "absent": "Ansible's; not here",
    "own": "crossgrade's own",
}


def doc_command(options: Options) -> int:
    """Exit code 5 for a name or a kind that there is not."""
    return guarded(lambda: _doc(options))


def _doc(options: Options) -> int:
    kind, names = options["type_"], options["name"] or []
    if kind and kind not in KINDS:
        remedy = did_you_mean(kind, KINDS) or f"They are: {', '.join(KINDS)}."
        raise WrongOptionsError(f"there is no kind of name {kind!r}", remedy=remedy)
    if options["list_"] or not names:
        found = words(kind or "module")
        _write(options, [_to_json(word) for word in found], "\n".join(_listing(found)))
        return ExitCode.DONE
    asked = [_find(name, kind) for name in names]
    _write(options, [_to_json(word) for word in asked], "\n\n".join("\n".join(_lines(word)) for word in asked))
    return ExitCode.DONE


def _write(options: Options, data: list[Any], text: str) -> None:
    sys.stdout.write((json.dumps(data, indent=1, ensure_ascii=False) if options["json"] else text) + "\n")


def _find(name: str, kind: str) -> Word:
    """The name in the kind that is asked for, else in the first that has it. Raises WrongOptionsError."""
    short = next((name[len(prefix) :] for prefix in PREFIXES if name.startswith(prefix)), name)
    candidates: dict[str, str] = {}
    for each in [kind] if kind else KINDS:
        for word in words(each):
            if short in word.names:
                return word
            candidates.update(dict.fromkeys(word.names, each))
    remedy = did_you_mean(short, candidates) or f"`crossgrade doc --list{f' -t {kind}' if kind else ''}` shows them."
    raise WrongOptionsError(f"there is no {kind or 'module, keyword, filter, test or lookup'} {name!r}", remedy=remedy)


def _listing(found: Sequence[Word]) -> Iterator[str]:
    width = max(len(", ".join(word.names)) for word in found)
    for word in found:
        absent = f" ({_STATES['absent']})" if word.state == "absent" else ""
        yield f"{', '.join(word.names):{width}}  {word.what}{absent}"


def _lines(word: Word) -> Iterator[str]:
    yield f"{', '.join(word.names)}  ({word.kind}, {_STATES[word.state]})"
    yield ""
    yield from _wrapped(word.what, "  ")
    if word.note:
        yield from _wrapped(f"{'Instead: ' if word.state == 'absent' else 'Note: '}{word.note}", "  ")
    if word.on:
        yield from _wrapped(f"On a {', '.join(word.on)}.", "  ")
    if word.kind == "module" and word.name in NAMES:
        yield from _module_lines(word.name)
    elif word.kind == "module" and word.name in STATEMENTS:
        yield from _argument_lines(STATEMENTS[word.name])


def _module_lines(name: str) -> Iterator[str]:
    module = load_module(name)
    guide = guide_of(module)
    yield from _wrapped(" ".join((module.arguments.__doc__ or "").split()), "  ")
    yield from _argument_lines(module.arguments)
    yield from ("", "Returns")
    for returned, what in {**guide.returns, **ALWAYS}.items():
        yield f"  {returned}"
        yield from _wrapped(what, "      ")
    for title, text in (("Check mode", guide.plan), ("Diff", guide.diff), ("Undo", guide.undo)):
        yield ""
        yield title
        yield from _wrapped(text, "  ")
    if guide.example:
        yield from ("", "Example", textwrap.indent(guide.example.rstrip(), "  "))


def _argument_lines(arguments: type[Any]) -> Iterator[str]:
    yield from ("", "Arguments")
    described = describe_arguments(arguments)
    for argument in described:
        yield f"  {', '.join((argument.name, *argument.aliases))}  ({_type(argument)})"
        yield from _wrapped(argument.doc, "      ")
    if not described:
        yield "  none"


def _type(argument: ArgumentDescription) -> str:
    parts = [argument.type if argument.elements in (None, "raw") else f"{argument.type} of {argument.elements}"]
    if argument.required:
        parts.append("required")
    elif argument.default not in (None, "", [], {}):
        parts.append(f"default {json.dumps(argument.default, ensure_ascii=False)}")
    if argument.choices:
        parts.append("one of " + ", ".join(sorted({json.dumps(choice).strip('"') for choice in argument.choices})))
    if argument.free_form:
        parts.append("may stand right behind the module's name")
    return "; ".join(parts)


def _wrapped(text: str, indent: str) -> list[str]:
    width = max(40, min(100, shutil.get_terminal_size((100, 24)).columns))
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _to_json(word: Word) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": word.name,
        "names": list(word.names),
        "kind": word.kind,
        "state": word.state,
        "description": word.what,
        "note": word.note,
    }
    if word.on:
        made["on"] = list(word.on)
    if word.states:
        made["states"] = dict(word.states)
    if word.kind == "module" and word.name in NAMES:
        module = load_module(word.name)
        guide = guide_of(module)
        made |= {
            "effect": module.effect,
            "arguments": [_argument_json(argument) for argument in describe_arguments(module.arguments)],
            "returns": {**guide.returns, **ALWAYS},
            "check_mode": guide.plan,
            "diff": guide.diff,
            "undo": guide.undo,
            "example": guide.example,
        }
    elif word.kind == "module" and word.name in STATEMENTS:
        made["arguments"] = [_argument_json(one) for one in describe_arguments(STATEMENTS[word.name])]
    return made


def _argument_json(argument: ArgumentDescription) -> dict[str, Any]:
    return {
        "name": argument.name,
        "aliases": list(argument.aliases),
        "type": argument.type,
        "elements": argument.elements,
        "required": argument.required,
        "default": argument.default,
        "choices": sorted(argument.choices, key=str),
        "description": argument.doc,
    }
