"""`-e`: variables from the command line, written as Ansible has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crossgrade.errors import PlaybookError, WrongOptionsError
from crossgrade.playbook.freeform import UnbalancedError, split_pairs
from crossgrade.playbook.positions import printable
from crossgrade.playbook.values import is_variable_name


def parse_extra_vars(options: Sequence[str]) -> dict[str, Any]:
    """All `-e` options together; later ones win.

    `name=value name2='a b'` gives text, `{"name": 1}` (JSON or YAML) keeps its types, `@FILE` is read as YAML
    or JSON. Raises WrongOptionsError.
    """
    variables: dict[str, Any] = {}
    for option in options:
        variables.update(_parse(option))
    for name in variables:
        if not is_variable_name(name):
            raise WrongOptionsError(
                f'-e: "{printable(str(name))}" cannot be the name of a variable',
                remedy="A name is made of letters, digits and `_`, and is no Python keyword.",
            )
    return variables


def _parse(option: str) -> dict[str, Any]:
    text = option.strip()
    if text.startswith("@"):
        return _from_file(text[1:])
    if text.startswith(("{", "[")):
        return _from_structure(text)
    try:
        pairs, rest = split_pairs(text)
    except UnbalancedError as error:
        raise WrongOptionsError(f"-e {printable(option)}: {error}") from error
    if rest:
        raise WrongOptionsError(
            printable(f"-e {option}: expected name=value, got {rest.split()[0]}"),
            remedy="Write -e name=value, -e '{\"name\": 1}' or -e @FILE; a value with spaces needs quotes.",
        )
    return dict(pairs)


def _from_file(name: str) -> dict[str, Any]:
    from crossgrade.playbook.loader import load_variables

    try:
        return dict(load_variables(Path(name).expanduser()).values)
    except PlaybookError as error:
        raise WrongOptionsError(f"-e @{printable(name)}: {error}") from error


def _from_structure(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        from crossgrade.playbook.yamltext import parse_yaml

        try:
            value = parse_yaml(text, "-e").root.value
        except PlaybookError as error:
            raise WrongOptionsError(f"-e: not valid JSON or YAML: {error}") from error
    if not isinstance(value, dict):
        raise WrongOptionsError("-e: expected a mapping of names to values")
    return value
