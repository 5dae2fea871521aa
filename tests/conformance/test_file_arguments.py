"""Each argument that Ansible documents of a file module is there, with its spellings and default, or is refused."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from crossgrade.modules import load_module
from crossgrade.playbook.arguments import declared_arguments, parse_arguments, refused_arguments
from crossgrade.playbook.positions import PlaybookErrors

MODULES = (
    *("copy", "template", "file", "stat", "lineinfile", "blockinfile", "replace", "find", "slurp", "tempfile"),
    *("unarchive", "get_url", "uri", "wait_for"),
)
NOTHING: tuple[Any, ...] = (None, "", (), [], {})


def documented(name: str) -> Mapping[str, Any]:
    """What the module's documentation says of each argument."""
    source = Path(str(import_module("ansible.modules").__file__)).parent / f"{name}.py"
    fragments = import_module("ansible.plugins.loader").fragment_loader
    options: Mapping[str, Any]
    options = import_module("ansible.utils.plugin_docs").get_docstring(str(source), fragments)[0]["options"]
    return options


@pytest.mark.parametrize("name", MODULES)
def test_every_argument_is_taken_or_refused(name: str) -> None:
    arguments = load_module(name).arguments
    ours = {one.name: one for one in declared_arguments(arguments)}
    refused = refused_arguments(arguments)
    for option, told in documented(name).items():
        spellings = {option, *told.get("aliases", ())}
        if option not in ours:
            assert spellings <= {*refused}, f"{option} is neither taken nor refused"
            with pytest.raises(PlaybookErrors) as caught:
                parse_arguments(arguments, {option: "x"})
            assert any(f'"{option}"' in str(one) and refused[option] in str(one) for one in caught.value.errors)
            continue
        assert {option, *ours[option].options.aliases} == spellings
        assert ours[option].required == bool(told.get("required"))
        default, theirs = ours[option].default, told.get("default")
        if isinstance(default, tuple) and isinstance(theirs, list):
            default, theirs = set(default), set(theirs)
        said = theirs is not None or name != "template"  # its documentation has not all that its action does
        assert not said or default == theirs or (default in NOTHING and theirs in NOTHING), f"{option}: another default"
        choices = {str(one) for one in ours[option].expected.choices}
        assert {str(one) for one in told.get("choices", ())} - choices <= NOT_HERE.get((name, option), set())


# choices that are refused by the names of those that there are
NOT_HERE = {("uri", "body_format"): {"form-multipart"}}


@pytest.mark.parametrize("name", MODULES)
def test_there_are_no_arguments_that_ansible_does_not_have(name: str) -> None:
    spellings = {
        spelling for option, told in documented(name).items() for spelling in (option, *told.get("aliases", ()))
    }
    arguments = load_module(name).arguments
    ours = {spelling for one in declared_arguments(arguments) for spelling in (one.name, *one.options.aliases)}
    assert {*ours, *refused_arguments(arguments)} <= spellings
