"""Known failures: what the outputs of tools mean, and what they do not mean."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from crossgrade.failures.explaining import explain
from crossgrade.failures.fields import derive
from crossgrade.failures.signatures import Signature, signatures

CASES: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "data" / "failures.yml").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", CASES, ids=[case["kind"] for case in CASES])
def test_the_cases_that_people_meet(case: dict[str, Any]) -> None:
    first = explain(case["output"], case.get("context"))[0]
    assert first.kind == case["kind"]
    assert [words for words in case["remedy_mentions"] if words not in first.remedy] == []


@pytest.mark.parametrize("signature", signatures(), ids=[f"{n}-{s.kind}" for n, s in enumerate(signatures())])
def test_each_row_explains_its_example_and_names_its_source(signature: Signature) -> None:
    found = explain(signature.example, signature.example_context)
    assert [each.kind for each in found[:1]] == [signature.kind]
    assert found[0].source == signature.source
    assert len(signature.source) > 8
    assert all(link.startswith("https://") for link in signature.links)
    assert signature.links


@pytest.mark.parametrize("signature", signatures(), ids=[f"{n}-{s.kind}" for n, s in enumerate(signatures())])
def test_templates_are_well_formed_and_ask_only_for_what_every_pattern_gives(signature: Signature) -> None:
    """A field that some pattern may not give stands in brackets, with something to say without it."""
    for template in (signature.cause, signature.remedy):
        plain = re.sub(r"\[[^\[\]]*\]", "", template)
        assert not set("[]") & set(plain), "brackets are not nested"
        for pattern in signature.compiled:
            value = "70" if signature.when == "architecture_was_dropped" else "120"  # what every derivation takes
            groups = dict.fromkeys(pattern.groupindex, value)
            optional = {name for name in groups if may_be_missing(pattern, name)}
            given = derive({name: value for name, value in groups.items() if name not in optional}, {})
            assert set(re.findall(r"\{(\w+)\}", plain)) <= set(given), pattern.pattern


def may_be_missing(pattern: re.Pattern[str], name: str) -> bool:
    """Whether a named group stands inside something optional, or in one of several alternatives."""
    parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    return pattern.groupindex[name] not in always(parser.parse(pattern.pattern))


def always(tree: Any) -> set[int]:
    """The groups that take part in every match of a parsed expression."""
    found: set[int] = set()
    for operator, argument in tree:
        if str(operator) == "SUBPATTERN":
            found |= always(argument[-1]) | ({argument[0]} if argument[0] else set())
        elif str(operator) == "BRANCH":
            found |= set.intersection(*(always(branch) for branch in argument[1]))
        elif str(operator) in ("MAX_REPEAT", "MIN_REPEAT") and argument[0] > 0:
            found |= always(argument[2])
    return found
