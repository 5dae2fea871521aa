"""`schema`: the language as JSON Schema, on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from crossgrade.commands.common import guarded
from crossgrade.errors import ExitCode, WrongOptionsError
from crossgrade.modules import NAMES, load_module
from crossgrade.playbook.json_schema import KINDS, SchemaModule, language_schema
from crossgrade.playbook.statements import STATEMENTS
from crossgrade.playbook.suggest import did_you_mean


def schema_command(options: Mapping[str, Any]) -> int:
    """Print the schema of `--kind`. Exit code 5 for a kind that there is not."""

    def body() -> int:
        kind = options["kind"]
        if kind not in KINDS:
            remedy = did_you_mean(kind, KINDS) or f"The kinds are: {', '.join(KINDS)}."
            raise WrongOptionsError(f"there is no schema of {kind!r}", remedy=remedy)
        sys.stdout.write(json.dumps(schema_of(kind), indent=1, ensure_ascii=False) + "\n")
        return ExitCode.DONE

    return guarded(body)


def schema_of(kind: str) -> dict[str, Any]:
    """The schema of a kind of file, with every module that there is. Raises KeyError for another kind."""
    return language_schema(kind, [*map(_module, sorted(NAMES)), *map(_statement, STATEMENTS)])


def _module(name: str) -> SchemaModule:
    module = load_module(name)
    return SchemaModule(name, module.summary, module.arguments)


def _statement(name: str) -> SchemaModule:
    arguments = STATEMENTS[name]
    return SchemaModule(name, arguments.__doc__ or "", arguments)
