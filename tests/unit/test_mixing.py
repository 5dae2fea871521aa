"""What must move together when two environments are mixed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tiny_wheels import tiny_venv, tiny_wheel

from crossgrade.inspect.mixing import Dist, Group, changed_names, grouped, needs_of, read_dists, unmet_names
from crossgrade.inspect.requirements import marker_environment

MARKERS = {"sys_platform": "linux", "python_version": "3.11"}


def needs(before: dict[str, Dist], after: dict[str, Dist]) -> dict[str, set[str]]:
    return needs_of(before, after, changed_names(before, after), MARKERS)


def test_a_pin_ties_both_ways() -> None:
    """sglang pins torch: neither version goes with the other torch."""
    before = {"sglang": Dist("1", ("torch==2.9",)), "torch": Dist("2.9"), "numpy": Dist("2")}
    after = {"sglang": Dist("2", ("torch==2.14",)), "torch": Dist("2.14"), "numpy": Dist("3")}
    found = needs(before, after)
    assert found == {"sglang": {"torch"}, "torch": {"sglang"}, "numpy": set()}
    assert grouped(["numpy", "sglang", "torch"], found) == (Group(("numpy",)), Group(("sglang", "torch")))


def test_a_lower_bound_ties_one_way() -> None:
    before = {"a": Dist("1", ("b>=1",)), "b": Dist("1")}
    after = {"a": Dist("2", ("b>=2",)), "b": Dist("2")}
    assert needs(before, after) == {"a": {"b"}, "b": set()}
    assert grouped(["a", "b"], needs(before, after)) == (Group(("b",)), Group(("a",), frozenset({0})))


def test_what_is_added_or_removed() -> None:
    before = {"a": Dist("1", ("old",)), "old": Dist("1")}
    after = {"a": Dist("2", ("new; sys_platform == 'linux'", "absent; sys_platform == 'win32'")), "new": Dist("1")}
    assert needs(before, after) == {"a": {"new"}, "old": {"a"}, "new": set()}
    assert [group.names for group in grouped(["a", "new", "old"], needs(before, after))] == [("new",), ("a",), ("old",)]


def test_extras_count_when_somebody_asks_for_them() -> None:
    before = {"a": Dist("1"), "b": Dist("1", ("c>=1; extra == 'fast'",)), "c": Dist("1")}
    after = {"a": Dist("1", ()), "b": Dist("2", ("c>=2; extra == 'fast'",)), "c": Dist("2")}
    assert needs(before, after) == {"b": set(), "c": set()}
    asking = {**after, "a": Dist("1", ("b[fast]",))}
    assert needs({**before, "a": Dist("1", ("b[fast]",))}, asking) == {"b": {"c"}, "c": set()}


def test_what_does_not_fit_already_ties_nothing() -> None:
    before = {"a": Dist("1", ("b<1", "gone", "not a requirement!")), "b": Dist("1")}
    after = {"a": Dist("2", ("b<1", "gone")), "b": Dist("2")}
    assert needs(before, after) == {"a": set(), "b": set()}
    assert unmet_names(before, MARKERS) == {"b", "gone"}


@given(st.integers(1, 9), st.data())
def test_groups_hold_every_name_once_each_after_what_it_needs(count: int, data: st.DataObject) -> None:
    names = [f"n{number}" for number in range(count)]
    tied = {name: data.draw(st.sets(st.sampled_from(names), max_size=3)) - {name} for name in names}
    groups = grouped(names, tied)
    assert sorted(name for group in groups for name in group.names) == names
    place = {name: number for number, group in enumerate(groups) for name in group.names}
    for number, group in enumerate(groups):
        assert all(need < number for need in group.needs)
        for name in group.names:
            assert {place[need] for need in tied[name]} <= {number, *group.needs}


@pytest.mark.parametrize("name", ["one"])
def test_read_from_a_real_environment(tmp_path: Path, name: str) -> None:
    wheels = [
        tiny_wheel(tmp_path, name, "1.0", requires=("two>=1", "three; extra == 'x'")),
        tiny_wheel(tmp_path, "two", "1.5"),
    ]
    venv = tiny_venv(tmp_path / "venv", *wheels)
    found = read_dists(venv)
    assert found == {"one": Dist("1.0", ("two>=1", "three; extra == 'x'")), "two": Dist("1.5")}
    assert unmet_names(found, marker_environment(venv)) == set()
