"""Profiles as a playbook says them: typed, with the place of what is wrong."""

from __future__ import annotations

from dataclasses import fields

import pytest
import yaml

from crossgrade.bench.load_profile import LoadProfile
from crossgrade.bench.profiles import _READERS, ProfilesError, parse_profiles
from crossgrade.bench.samples import LoadResult


def parsed(text: str, defaults: LoadProfile | None = None) -> tuple[LoadProfile, ...]:
    return parse_profiles(yaml.safe_load(text), defaults, what="benchmark: profiles")


def test_what_an_item_does_not_say_is_as_in_the_defaults() -> None:
    one, eight = parsed(
        """
        - {name: one stream, concurrency: 1}
        - {concurrency: "8", requests: 64, timeout: 2.5, prompts: [a, b], extra_body: {top_k: 1}}
        """,
        LoadProfile(requests=12, max_tokens=32, name="of the module"),
    )
    assert (one.name, one.concurrency, one.requests, one.max_tokens) == ("one stream", 1, 12, 32)
    assert (eight.name, eight.concurrency, eight.requests, eight.timeout) == ("concurrency-8", 8, 64, 2.5)
    assert (eight.prompts, eight.extra_body) == (("a", "b"), {"top_k": 1})


def test_a_profile_can_say_every_field() -> None:
    assert set(_READERS) == {field.name for field in fields(LoadProfile)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8", r"benchmark: profiles: a list of profiles is needed, not 8"),
        ("[]", r"benchmark: profiles: a list of profiles is needed"),
        ("[eight]", r"benchmark: profiles\[0\]: a profile is a mapping"),
        ("[{concurrency: 1}, {concurrency: many}]", r"profiles\[1\]\.concurrency: 'many' is no whole number"),
        ("[{concurrency: true}]", r"profiles\[0\]\.concurrency: True is no whole number"),
        ("[{concurrency: 0}]", r"profiles\[0\]: concurrency is 0, at least 1 is needed"),
        ("[{concurency: 1}]", r"profiles\[0\]: 'concurency' is nothing .* did you mean concurrency\?"),
        ("[{timeout: .inf}]", r"profiles\[0\]\.timeout: inf is no number"),
        ("[{prompts: [1]}]", r"profiles\[0\]\.prompts: \[1\] is no list of texts"),
        ("[{name: a}, {name: b}, {name: a}]", r"profiles\[2\]\.name: another profile is called 'a' too, item 0"),
        ("[{endpoint: video}]", r"profiles\[0\]: endpoint is 'video', not one of completions, chat"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, words: str) -> None:
    with pytest.raises(ProfilesError, match=words):
        parsed(text)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ProfilesError) as caught:
        parsed("[{concurrency: x, requests: y}, 3]")
    assert [problem.keys for problem in caught.value.problems] == [(0, "concurrency"), (0, "requests"), (1,)]


def test_the_text_of_a_profile_without_a_name_is_what_it_was() -> None:
    """Verdicts on record go by it."""
    assert "name" not in LoadProfile().to_json()
    (named,) = parsed("[{name: a}]")
    assert named.to_json()["name"] == "a"
    assert LoadResult(named, (), (), 0.0, 0.0).to_json()["profile"] == named.to_json()
