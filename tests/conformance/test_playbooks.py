"""Each playbook of `playbooks/` has the same outcome here as in real ansible-core, but for wanted differences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.cases import all_cases, table
from tests.support.both_ways import FIELDS, Batch, BothWays, described, differing

# What differs on purpose: case → the fields of the outcome that differ, and why. `docs/language.md` shows the reasons.
DIFFERENCES = table("differences.yml")


@pytest.fixture(scope="module")
def batch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Batch]:
    """All the cases that were asked for, run a few at a time while the tests wait for theirs."""
    wanted = {name for item in request.session.items if (name := _case_of(item))}
    with BothWays(tmp_path_factory.mktemp("both")) as both:
        found = Batch(both, [case for name, case in all_cases().items() if name in wanted])
        yield found
        found.close()


def _case_of(item: pytest.Item) -> str:
    call = getattr(item, "callspec", None)
    return str(call.params.get("name", "")) if item.path == Path(__file__) and call is not None else ""


@pytest.mark.parametrize("name", list(all_cases()))
def test_like_ansible(batch: Batch, name: str) -> None:
    theirs, ours = batch.outcome(name)
    found = differing(ours, theirs)
    assert found == DIFFERENCES.get(name, {}).get("differs", []), described(ours, theirs, found or FIELDS)


def test_every_case_says_what_it_is_about() -> None:
    assert [name for name, case in all_cases().items() if not case.about] == []
    assert len(all_cases()) >= 200


def test_tables_name_cases_and_fields_and_reasons() -> None:
    assert sorted({*DIFFERENCES} - {*all_cases()}) == []
    for name, row in DIFFERENCES.items():
        assert set(row) == {"differs", "of", "reason"}, name
        assert row["differs"], name
        assert set(row["differs"]) <= set(FIELDS), name
