"""Which requests a load sends, and when: the same for the same profile, on old and new. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from crossgrade.bench.load_profile import LoadProfile
from crossgrade.bench.prompt_files import Prompt

# What prompts are made of when none are given.
WORDS = """
after again air also and animal answer any ask back because before big boy but came change come
could country day different do does earth end even every eye far father few find first follow form
found give good great hand hard head help here high home house how just kind know land large last
learn leave left letter light line little live long look low made make man many mean men might
mother mountain move much must name near need never new night number off often old only open other
our out over page paper part
"""


@dataclass(frozen=True)
class PlannedRequest:
    """One request. Measured ones count from 0; `due` is seconds after the load's start, 0 in a closed loop."""

    index: int
    prompt: str
    max_tokens: int
    due: float = 0.0


def planned_requests(profile: LoadProfile) -> Iterator[PlannedRequest]:
    """The requests of a load in the order in which they are sent, without end; warm-up has indices below 0."""
    texts = _prompts(profile)
    moments = send_times(profile)
    answers = random.Random(f"answers {profile.seed}")  # noqa: S311 - nothing secret: a repeatable choice
    prefixes = random.Random(f"prefixes {profile.seed}")  # noqa: S311 - as above
    prefix = shared_prefix(profile)
    index = -profile.warmup_requests
    while True:
        prompt = next(texts)
        tokens = prompt.output_tokens
        if tokens is None:
            tokens = profile.output_lengths.draw(answers) if profile.output_lengths else profile.max_tokens
        text = prompt.text
        if prefix and prefixes.random() < profile.shared_prefix_share:
            text = f"{prefix} {text}"
        yield PlannedRequest(index, text, tokens, next(moments))
        index += 1


def prompts(profile: LoadProfile) -> Iterator[str]:
    """The prompts of request 0, 1, 2, … without what they share."""
    for prompt in _prompts(profile):
        yield prompt.text


def shared_prefix(profile: LoadProfile) -> str:
    """The words that prompts of this profile share; the same for every seed, as a system prompt would be."""
    choose = random.Random("shared prefix")  # noqa: S311 - as above
    return _text(choose, profile.shared_prefix_words)


def send_times(profile: LoadProfile) -> Iterator[float]:
    """Seconds after the load's start at which requests are due. Of a closed loop: 0, without end.

    `poisson`: independent exponential gaps, as requests of many people come.
    """
    if profile.rate is None:
        while True:
            yield 0.0
    gaps = random.Random(f"arrivals {profile.seed}")  # noqa: S311 - as above
    number = 0
    moment = 0.0
    while True:
        if profile.arrivals == "constant":
            moment = number / profile.rate
        elif number:
            moment += gaps.expovariate(profile.rate)
        yield moment
        number += 1


def _prompts(profile: LoadProfile) -> Iterator[Prompt]:
    choose = random.Random(profile.seed)  # noqa: S311 - as above
    lengths = random.Random(f"lengths {profile.seed}")  # noqa: S311 - as above
    given = profile.prompt_set.prompts if profile.prompt_set else tuple(Prompt(text) for text in profile.prompts)
    while True:
        if given:
            shuffled = list(given)
            choose.shuffle(shuffled)
            yield from shuffled
        else:
            words = profile.prompt_lengths.draw(lengths) if profile.prompt_lengths else profile.prompt_words
            yield Prompt(_text(choose, words))


def _text(choose: random.Random, words: int) -> str:
    known = _WORDS
    return " ".join(choose.choice(known) for _ in range(words))


_WORDS = WORDS.split()
