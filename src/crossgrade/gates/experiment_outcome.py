"""What came of an experiment: from what was seen of its server to one outcome, with the words that say why. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from crossgrade.bench.statistics import non_inferiority
from crossgrade.gates.experiments import Experiment
from crossgrade.jsontype import JSON

Outcome = Literal[
    "unblocked and faster",
    "unblocked and slower",
    "unblocked, faster and slower",  # by concurrency
    "unblocked, no difference shown",
    "still blocked",
    "not tried",
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
PAIRS_FOR_AN_INTERVAL = 2
# sglang 0.5.9 and 0.5.23, the names of tp_size
TENSOR_PARALLEL = ("--tp", "--tp-size", "--tensor-parallel-size")


@dataclass(frozen=True)
class Explained:
    """A known failure in the server's log: its kind in knowledge/failures.yml, the cause, and a line that shows it."""

    kind: str
    cause: str
    line: str


@dataclass(frozen=True)
class Speed:
    """Output tokens per second at one concurrency, pair by pair: (plain launch line, variant)."""

    concurrency: int
    pairs: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Trial:
    """What was seen of a variant.

    `problem` is why it did not serve, "" when it did; `last_words` the end of its log. `refusal` is the line by which
    the server says that it goes on without the feature; `unshown` the pattern of a line that is missing.
    """

    problem: str = ""
    last_words: tuple[str, ...] = ()
    explained: tuple[Explained, ...] = ()
    refusal: str = ""
    unshown: str = ""
    speeds: tuple[Speed, ...] = ()
    log: str = ""


@dataclass(frozen=True)
class Measured:
    """One concurrency, judged. Means are geometric; `low` and `high` bound the ratio (90%), None for one pair."""

    concurrency: int
    plain: float
    variant: float
    ratio: float
    low: float | None
    high: float | None
    pairs: int
    says: Literal["faster", "slower", "no difference shown"]

    def __str__(self) -> str:
        bounds = "" if self.low is None or self.high is None else f", {self.low:.2f} to {self.high:.2f}"
        return (
            f"concurrency {self.concurrency}: {self.plain:.4g} -> {self.variant:.4g} tokens/s "
            f"(ratio {self.ratio:.3f}{bounds}): {self.says}"
        )

    def to_json(self) -> dict[str, JSON]:
        return {
            "concurrency": self.concurrency,
            "plain": self.plain,
            "variant": self.variant,
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "pairs": self.pairs,
            "says": self.says,
        }


@dataclass(frozen=True)
class Result:
    """The outcome of an experiment with its reason in one line, lines of evidence, and what was measured."""

    outcome: Outcome
    reason: str
    evidence: tuple[str, ...] = ()
    measured: tuple[Measured, ...] = ()
    kinds: tuple[str, ...] = ()

    def to_json(self) -> dict[str, JSON]:
        return {
            "outcome": self.outcome,
            "reason": self.reason,
            "evidence": list(self.evidence),
            "measured": [each.to_json() for each in self.measured],
            "kinds": list(self.kinds),
        }


def judge_trial(experiment: Experiment, trial: Trial, noise: float) -> Result:
    """The outcome of a variant that was started. `noise` is the share below which one pair shows no difference."""
    kinds = tuple(each.kind for each in trial.explained)
    if trial.problem:
        first = trial.explained[0] if trial.explained else None
        old = next((each for each in trial.explained if each.kind in experiment.failures), None)
        if old is not None:
            reason = f"{trial.problem}; the old failure ({old.kind}): {old.cause}"
        elif first is not None:
            reason = f"{trial.problem}; another failure than before ({first.kind}): {first.cause}"
        else:
            last = next((line for line in reversed(trial.last_words) if line.strip()), "it said nothing")
            reason = f"{trial.problem}; no known failure; its last words: {last.strip()}"
        lines = tuple(each.line for each in trial.explained) or trial.last_words[-3:]
        return Result("still blocked", reason, (*lines, *_log(trial)), kinds=kinds)
    if trial.refusal:
        reason = "the server serves without it, and says so"
        return Result("still blocked", reason, (trial.refusal, *_log(trial)), kinds=kinds)
    if trial.unshown:
        reason = f"the server serves, but its log never says that it is used ({trial.unshown})"
        return Result("still blocked", reason, _log(trial), kinds=kinds)
    measured = tuple(judge_speed(speed, noise) for speed in trial.speeds)
    return Result(_outcome(measured), "; ".join(map(str, measured)), _log(trial), measured)


def judge_speed(speed: Speed, noise: float) -> Measured:
    """Faster or slower only where the pairs show it: by their interval, or of a single pair by `noise`."""
    judged = non_inferiority(speed.pairs, allowed_loss=0.0, higher_is_better=True, minimum_pairs=PAIRS_FOR_AN_INTERVAL)
    says: Literal["faster", "slower", "no difference shown"] = "no difference shown"
    if judged.lower_bound_ratio is None:
        if judged.mean_ratio > 1 + noise:
            says = "faster"
        elif judged.mean_ratio < 1 - noise:
            says = "slower"
    elif judged.outcome == "passed":
        says = "faster"
    elif judged.outcome == "failed":
        says = "slower"
    return Measured(
        speed.concurrency,
        judged.old,
        judged.new,
        judged.mean_ratio,
        judged.lower_bound_ratio,
        judged.upper_bound_ratio,
        judged.pairs,
        says,
    )


def _outcome(measured: Sequence[Measured]) -> Outcome:
    said = {each.says for each in measured}
    if {"faster", "slower"} <= said:
        return "unblocked, faster and slower"
    if "faster" in said:
        return "unblocked and faster"
    return "unblocked and slower" if "slower" in said else "unblocked, no difference shown"


def _log(trial: Trial) -> tuple[str, ...]:
    return (f"log: {trial.log}",) if trial.log else ()


# ---- the variant's launch line


def variant_words(plain: Sequence[str], flags: Sequence[str], without: Sequence[str], gpus: int) -> tuple[str, ...]:
    """The plain launch line with a variant's flags: those of the same name are replaced where they stand. Pure.

    What starts the server stays as it is; `without` names options that are taken off with their values. In flags,
    ``{gpus}`` stands for `gpus`.
    """
    from crossgrade.facts.launch_line import grouped, read_line

    line = read_line(plain)
    begin = next((at for at, word in enumerate(plain) if word.startswith("--")), len(plain))
    start = line.start if line else tuple(plain[:begin])
    new = {group.option: group for group in grouped([word.replace("{gpus}", str(gpus)) for word in flags])}
    words = list(start)
    for group in line.groups if line else grouped(plain[begin:]):
        if group.option in new:
            words += new.pop(group.option).words
        elif group.option not in without:
            words += group.words
    return (*words, *(word for group in new.values() for word in group.words))


def plain_words(command: Sequence[str], version: str) -> tuple[str, ...]:
    """A launch line as a version of its server calls things; one that starts no known server stays as it is. Pure."""
    from crossgrade.facts.launch_line import read_line, translate

    line = read_line(command)
    return tuple(command) if line is None else translate(line, version).line.words


def gpus_of(command: Sequence[str]) -> int:
    """Over how many GPUs a launch line spreads the model: 1 where it says nothing. Pure."""
    from crossgrade.facts.launch_line import read_line

    line = read_line(command)
    for group in line.groups if line else ():
        if group.option in TENSOR_PARALLEL and group.values and group.values[0].isdecimal():
            return int(group.values[0])
    return 1


def lacking_values(experiment: Experiment, values: Mapping[str, str]) -> str:
    """Why a variant cannot be written down: a value that nobody gave; "" when there is none. Pure."""
    missing = [f"`{name}` ({what})" for name, what in experiment.values.items() if not values.get(name)]
    return f"it needs {' and '.join(missing)}" if missing else ""
