"""What a load sends and when: lengths, moments, prefixes and files of prompts, also hostile ones."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossgrade.bench import prompt_files
from crossgrade.bench.lengths import LARGEST_LENGTH, Lengths, lengths_file, parse_lengths
from crossgrade.bench.load_profile import LoadProfile
from crossgrade.bench.planned import planned_requests, prompts, send_times, shared_prefix
from crossgrade.bench.profiles import ProfilesError, parse_profiles
from crossgrade.bench.prompt_files import Prompt, PromptFileError, read_prompt_set


def generator(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - nothing secret


# --- lengths


@given(
    kind=st.sampled_from(["uniform", "normal", "lognormal"]),
    first=st.floats(1, 5000),
    second=st.floats(0, 5000),
    least=st.integers(1, 100),
    spread=st.integers(0, 1000),
    seed=st.integers(0, 2**32),
)
def test_a_length_is_a_whole_number_within_its_bounds(
    kind: Any, first: float, second: float, least: int, spread: int, seed: int
) -> None:
    pair = tuple(sorted((first, second))) if kind == "uniform" else (first, second)
    lengths = Lengths(kind, pair, least, least + spread)
    one, again = generator(seed), generator(seed)
    drawn = [lengths.draw(one) for _ in range(20)]
    assert all(type(length) is int and least <= length <= least + spread for length in drawn)
    assert drawn == [lengths.draw(again) for _ in range(20)]


def test_distributions_are_what_they_are_called() -> None:
    choose = generator(1)
    normal = [parse_lengths({"normal": [200, 20]}).draw(choose) for _ in range(4000)]
    assert statistics.mean(normal) == pytest.approx(200, abs=2)
    assert statistics.stdev(normal) == pytest.approx(20, rel=0.1)
    lognormal = [parse_lengths({"lognormal": [200, 0.5]}).draw(choose) for _ in range(4000)]
    assert statistics.median(lognormal) == pytest.approx(200, rel=0.05)
    assert statistics.stdev(map(math.log, lognormal)) == pytest.approx(0.5, rel=0.1)
    uniform = {parse_lengths({"uniform": ["3", 5]}).draw(choose) for _ in range(200)}
    assert uniform == {3, 4, 5}
    assert {parse_lengths(7).draw(choose) for _ in range(5)} == {7}


NAMES = st.sampled_from(["normal", "uniform", "file", "least", "most", "x"])
LEAVES = st.none() | st.booleans() | st.floats() | st.text() | st.integers()


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=5))
def test_whatever_yaml_says_is_lengths_or_a_clear_error(value: Any) -> None:
    try:
        lengths = parse_lengths(value)
    except ValueError:
        return
    assert 1 <= lengths.draw(generator(0)) <= LARGEST_LENGTH


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"normal": [1]}, "normal takes 2 numbers, not 1"),
        ({"uniform": [9, 3]}, "lowest length first"),
        ({"zipf": 2}, "'zipf' is no distribution"),
        ({"normal": [10, 1], "least": 5, "most": 2}, "lengths go from 5 to 2"),
        ({"file": "/nonexistent"}, "/nonexistent cannot be read"),
        ("many", "'many' is no number"),
        (-1, "below 0"),
    ],
)
def test_wrong_lengths_are_named(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_lengths(value)


def test_lengths_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    path.write_text("# of last week\n12\n\n700\n")
    assert lengths_file(path) == (12.0, 700.0)
    lengths = parse_lengths({"file": str(path)})
    assert {lengths.draw(generator(seed)) for seed in range(40)} == {12, 700}
    path.write_text("12\ntwelve\n")
    with pytest.raises(ValueError, match=":2: 'twelve' is no length"):
        lengths_file(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is no text"):
        lengths_file(path)
    path.write_text("\n")
    with pytest.raises(ValueError, match="holds no length"):
        lengths_file(path)


# --- moments


def test_poisson_arrivals_have_the_mean_and_the_spread_of_their_rate() -> None:
    moments = list(itertools.islice(send_times(LoadProfile(rate=20.0, seed=3)), 20_001))
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert moments[0] == 0.0
    # The mean of 20,000 exponential gaps has a standard error of 0.7%; the coefficient of variation is 1.
    assert statistics.mean(gaps) == pytest.approx(1 / 20, rel=0.03)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(1.0, abs=0.05)
    # Counts in a second: mean and variance alike.
    counts = [sum(second <= moment < second + 1 for moment in moments) for second in range(0, 900, 9)]
    assert statistics.mean(counts) == pytest.approx(20, rel=0.1)
    assert statistics.variance(counts) / statistics.mean(counts) == pytest.approx(1.0, abs=0.5)


def test_constant_arrivals_do_not_drift() -> None:
    moments = list(itertools.islice(send_times(LoadProfile(rate=3.0, arrivals="constant")), 3001))
    assert moments[:3] == [0.0, 1 / 3, 2 / 3]
    assert moments[3000] == 1000.0


def test_a_closed_loop_has_no_moments() -> None:
    assert list(itertools.islice(send_times(LoadProfile()), 3)) == [0.0] * 3


def test_the_same_seed_gives_the_same_load_and_another_another() -> None:
    def load(seed: int) -> list[Any]:
        profile = LoadProfile(
            seed=seed,
            rate=5.0,
            output_lengths=Lengths("uniform", (1, 500)),
            shared_prefix_words=4,
            shared_prefix_share=0.5,
        )
        return list(itertools.islice(planned_requests(profile), 30))

    assert load(1) == load(1)
    assert all(one != other for one, other in zip(load(1)[1:], load(2)[1:], strict=True))
    assert [request.index for request in load(1)][:3] == [-1, 0, 1]


# --- shared prefixes


def test_a_share_of_the_prompts_begins_with_the_same_words() -> None:
    profile = LoadProfile(shared_prefix_words=50, shared_prefix_share=0.3, prompt_words=8)
    prefix = shared_prefix(profile)
    sent = [request.prompt for request in itertools.islice(planned_requests(profile), 2000)]
    sharing = [text for text in sent if text.startswith(prefix + " ")]
    assert len(prefix.split()) == 50
    assert len(sharing) / len(sent) == pytest.approx(0.3, abs=0.05)
    assert {len(text.split()) for text in sent} == {8, 58}
    assert len(set(sent)) == len(sent)
    assert shared_prefix(LoadProfile(shared_prefix_words=50, seed=9)) == prefix  # a system prompt knows no seed


# --- files of prompts


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "prompts"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


SHAREGPT = [
    {
        "id": "a",
        "conversations": [
            {"from": "system", "value": "be"},
            {"from": "human", "value": "one"},
            {"from": "gpt", "value": "x"},
        ],
    },
    {"id": "b", "conversations": []},
    {"id": "c", "conversations": [{"from": "user", "value": 'two {["}'}]},
    {"messages": [{"role": "user", "content": "three"}], "output_tokens": 7},
    "four",
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps(SHAREGPT), [Prompt("one"), Prompt('two {["}'), Prompt("three", 7), Prompt("four")]),
        (
            "\ufeff \n" + json.dumps(SHAREGPT, indent=3),
            [Prompt("one"), Prompt('two {["}'), Prompt("three", 7), Prompt("four")],
        ),
        ('{"prompt": "a", "max_tokens": 3}\n\n{"text": "b"}\n', [Prompt("a", 3), Prompt("b")]),
        ("what is it?\n\n  and then? \r\nü\n", [Prompt("what is it?"), Prompt("  and then? "), Prompt("ü")]),
        ("no line end", [Prompt("no line end")]),
    ],
)
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_the_kinds_of_files(
    tmp_path: Path, text: str, expected: list[Prompt], piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the file is cut into pieces."""
    if not text.startswith("\ufeff"):
        monkeypatch.setattr(prompt_files, "PIECE", piece)
    assert list(read_prompt_set(written(tmp_path, text)).prompts) == expected


def test_no_more_is_read_than_is_used(tmp_path: Path) -> None:
    """What comes after the prompts that are wanted is not even JSON."""
    text = "[" + ",".join(json.dumps({"prompt": f"p{n} " + "x" * 1000}) for n in range(5000)) + ", broken"
    found = read_prompt_set(written(tmp_path, text), most=20)
    assert [prompt.text.split()[0] for prompt in found.prompts] == [f"p{n}" for n in range(20)]
    with pytest.raises(PromptFileError, match="item 5000: "):
        read_prompt_set(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no prompt"),
        ("  \n ", "begins with 4 characters of white space"),
        ("[]", "holds no prompt"),
        ("[" * 100_000, "item 0: nested too deeply"),
        ('{"prompt": ' + "[" * 100_000, ":1: nested too deeply"),
        ('["a" "b"]', "after item 0 stands '\"', not `,` or `]`"),
        ('["a",', "ends after item 1, without `]`"),
        ('["a", {"prompt": "b"', "item 1: "),
        ("[1, 2]", "item 0: an item is a text or an object, not int"),
        ('[{"prompt": 3}]', "item 0: `prompt` is no text"),
        ('[{"question": "x"}]', "item 0: it has no prompt, text, messages or conversations, but question"),
        ('[{"conversations": "x"}]', "`conversations` is no list of turns"),
        ('{"prompt": "a", "max_tokens": -1}', ":1: `max_tokens` is -1, no number of tokens"),
        ('{"prompt": "a"}\nbroken', ":2: Expecting value"),
        (b"\xff\xfe\x00text", "is not UTF-8"),
        (b"fine\n" + b"\xff" * 10, "is not UTF-8"),
    ],
)
def test_hostile_files_are_refused_with_the_place(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(PromptFileError, match=words):
        read_prompt_set(written(tmp_path, text))


def test_sizes_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_files, "LARGEST_ITEM", 1000)
    monkeypatch.setattr(prompt_files, "PIECE", 100)
    with pytest.raises(PromptFileError, match=":1: a line longer than 1000 characters"):
        read_prompt_set(written(tmp_path, "x" * 2000))
    with pytest.raises(PromptFileError, match="item 1: longer than 1000 characters"):
        read_prompt_set(written(tmp_path, '["a", "' + "x" * 5000))
    monkeypatch.setattr(prompt_files, "MOST_BYTES", 50)
    with pytest.raises(PromptFileError, match="the first 10000 prompts are more than"):
        read_prompt_set(written(tmp_path, "twenty characters or so\n" * 4))
    with pytest.raises(PromptFileError, match="cannot be read"):
        read_prompt_set(tmp_path)


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_any_file_gives_prompts_or_a_clear_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    try:
        found = read_prompt_set(path)
    except PromptFileError:
        return
    assert all(prompt.text.strip() for prompt in found.prompts)


def test_a_profile_takes_its_prompts_from_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps([{"prompt": f"p{n}", "output_tokens": n + 1} for n in range(5)]))
    (profile,) = parse_profiles([{"prompt_set": str(path), "name": "file"}], LoadProfile(prompts=("of the module",)))
    planned = list(itertools.islice(planned_requests(profile), 5))
    assert {(request.prompt, request.max_tokens) for request in planned} == {(f"p{n}", n + 1) for n in range(5)}
    assert set(itertools.islice(prompts(profile), 5)) == {f"p{n}" for n in range(5)}
    told = profile.to_json()["prompt_set"]
    assert isinstance(told, dict)
    assert (told["prompts"], len(str(told["sha256"]))) == (5, 64)
    with pytest.raises(ProfilesError, match=r"profiles\[1\]\.prompt_set: /nonexistent cannot be read"):
        parse_profiles([{"concurrency": 1}, {"prompt_set": "/nonexistent"}])


def test_an_open_loop_has_no_concurrency() -> None:
    open_loop, closed = parse_profiles([{"rate": 2.5}, {"concurrency": 3}], LoadProfile(rate=9.0))
    assert (open_loop.name, open_loop.rate) == ("rate-2.5", 2.5)
    assert (closed.name, closed.rate) == ("concurrency-3", None)
    with pytest.raises(ProfilesError, match=r"an open loop .`rate`. has no concurrency"):
        parse_profiles([{"rate": 2.5, "concurrency": 3}])
    with pytest.raises(ProfilesError, match=r"profiles\[0\]: rate is 0.0 requests/s, it must be above 0"):
        parse_profiles([{"rate": 0}])
