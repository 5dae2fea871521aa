"""Random playbooks have the same outcome here as in real ansible-core: see `random_playbooks.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, note, settings
from tests.conformance.random_playbooks import cases
from tests.support.both_ways import BothWays, Case, Outcome, described, differing

COMMON = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BothWays]:
    with BothWays(tmp_path_factory.mktemp("random")) as found:
        yield found


def _compare(both: BothWays, case: Case) -> None:
    theirs, ours = (_sorted(outcome) for outcome in both.run(case))
    found = differing(ours, theirs)
    if found and found != ["begun"]:  # what fails in Ansible, too, need not be begun here
        note(_told(case))
        note(described(ours, theirs, found))
        pytest.fail(f"differs in {', '.join(found)}")


def _sorted(outcome: Outcome) -> Outcome:
    """Ansible's hosts do a task side by side, so that what they say comes in any order."""
    return replace(outcome, log=sorted(outcome.log))


def _told(case: Case) -> str:
    """The playbook in the form of a file of `playbooks/`."""
    head = f"# about: \n# options: {' '.join(case.options)}\n"
    return head + case.playbook + "".join(f"--- # file: {name}\n{text}" for name, text in case.files.items())


@settings(COMMON, max_examples=20, derandomize=True)
@given(cases())
def test_random_playbooks_like_ansible(both: BothWays, case: Case) -> None:
    _compare(both, case)


@pytest.mark.slow
@settings(COMMON, max_examples=600)
@given(cases())
def test_many_random_playbooks_like_ansible(both: BothWays, case: Case) -> None:
    _compare(both, case)
