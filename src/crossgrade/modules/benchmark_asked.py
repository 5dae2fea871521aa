"""What a `benchmark` task asks for, from its arguments: loads, targets, and how the servers are started. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from crossgrade.errors import TaskError
from crossgrade.modules.server import ServerArguments, what_starts

if TYPE_CHECKING:
    from crossgrade.bench.load_profile import LoadProfile
    from crossgrade.gates.benchmark_rules import BenchmarkRules, Targets
    from crossgrade.modules.benchmark import Arguments

TARGETS = ("allowed_loss", "metrics", "floors", "ceilings")  # what an item of `profiles` may say besides its load
FIRST_METRIC = "output_tokens_per_second"


def profile_of(arguments: Arguments) -> LoadProfile:
    """The load of the task itself. Raises TaskError for numbers that make no load."""
    from crossgrade.bench.load_profile import LoadProfile

    return LoadProfile(
        concurrency=arguments.concurrency,
        requests=arguments.requests,
        warmup_requests=arguments.warmup_requests,
        max_tokens=arguments.max_tokens,
        prompts=arguments.prompts,
        prompt_words=arguments.prompt_words,
        timeout=arguments.timeout,
        endpoint=arguments.endpoint,
        model=arguments.model,
    )


def profiles_of(arguments: Arguments) -> tuple[LoadProfile, ...]:
    """All loads of one launch, in their order. Raises TaskError with the place of what is wrong."""
    own = profile_of(arguments)
    if not arguments.profiles:
        return (own,)
    from crossgrade.bench.profiles import parse_profiles

    return parse_profiles([_load_part(item) for item in arguments.profiles], own, what="benchmark: profiles")


def rules_of(arguments: Arguments) -> BenchmarkRules:
    """Raises TaskError for an unknown metric, a loss that is no share, and pairs that cannot be planned."""
    from crossgrade.gates.benchmark_rules import BenchmarkRules

    every = targets_of(arguments)
    return BenchmarkRules(
        allowed_losses=every.allowed_losses,
        floors=every.floors,
        ceilings=every.ceilings,
        of_profile=targets_by_profile(arguments),
        minimum_pairs=arguments.minimum_pairs,
        maximum_pairs=arguments.maximum_pairs,
        maximum_void=arguments.maximum_void,
    )


def targets_of(arguments: Arguments) -> Targets:
    """What every profile is held to that says nothing else. Without an old server there is no loss to judge."""
    from crossgrade.gates.benchmark_rules import Targets

    return Targets(
        {} if arguments.baseline == "none" else losses_of(arguments),
        _numbers(arguments.floors, "floors"),
        _numbers(arguments.ceilings, "ceilings"),
    )


def targets_by_profile(arguments: Arguments) -> dict[str, Targets]:
    """The targets of each profile that the task lists, by its name."""
    every = targets_of(arguments)
    found = {}
    for position, (profile, item) in enumerate(zip(profiles_of(arguments), arguments.profiles, strict=False)):
        what = f"profiles[{position}]"
        if "allowed_loss" in item and "metrics" in item:
            raise TaskError(f"benchmark: {what}: `allowed_loss` and `metrics` exclude each other")
        losses: Mapping[str, float] = every.allowed_losses
        if arguments.baseline != "none" and "metrics" in item:
            losses = _numbers(item["metrics"], f"{what}.metrics")
        elif arguments.baseline != "none" and "allowed_loss" in item:
            losses = _numbers({FIRST_METRIC: item["allowed_loss"]}, f"{what}.allowed_loss")
        floors = _numbers(item["floors"], f"{what}.floors") if "floors" in item else every.floors
        ceilings = _numbers(item["ceilings"], f"{what}.ceilings") if "ceilings" in item else every.ceilings
        found[profile.name] = replace(every, allowed_losses=losses, floors=floors, ceilings=ceilings)
    return found


def losses_of(arguments: Arguments) -> dict[str, float]:
    """The allowed losses of the task itself."""
    return _numbers(arguments.metrics, "metrics") or {FIRST_METRIC: arguments.allowed_loss}


def baseline_of(arguments: Arguments, server: ServerArguments) -> ServerArguments:
    """How the old server is started."""
    return replace(server, command=arguments.baseline_command) if arguments.baseline_command else server


def starts(server: ServerArguments) -> str:
    """A digest of how a server is started: stored launches stand for it only where it is the same."""
    return hashlib.sha256(json.dumps(what_starts(server), sort_keys=True).encode()).hexdigest()[:32]


def matters(arguments: Arguments, server: ServerArguments) -> dict[str, Any]:
    """What a verdict depends on. Words that came later are left out where a task does not use them: verdicts are on
    record that have no such word."""
    asked: dict[str, Any] = {"server": what_starts(server)}
    if arguments.baseline_command:
        asked["baseline_command"] = what_starts(baseline_of(arguments, server))["command"]
    asked["profile"] = profile_of(arguments).to_json()
    asked["losses"] = losses_of(arguments)
    asked["pairs"] = [arguments.minimum_pairs, arguments.maximum_pairs]
    asked["side_by_side"] = arguments.side_by_side
    if arguments.baseline in ("stored", "none"):
        asked["baseline"] = arguments.baseline
    if arguments.profiles:
        targets = targets_by_profile(arguments)
        asked["profiles"] = [[one.to_json(), vars(targets[one.name])] for one in profiles_of(arguments)]
    every = targets_of(arguments)
    if every.limits:
        asked["limits"] = every.limits
    return asked


def _load_part(item: Any) -> Any:
    """An item of `profiles` without its targets; what is no mapping is left for `parse_profiles` to name."""
    return {key: value for key, value in item.items() if key not in TARGETS} if isinstance(item, Mapping) else item


def _numbers(values: Any, what: str) -> dict[str, float]:
    """A mapping of numbers, which may come as texts out of templates. Raises TaskError."""
    if not isinstance(values, Mapping):
        raise TaskError(f"benchmark: {what}: a mapping of metrics to numbers is needed, not {json.dumps(values)}")
    return {str(name): _number(value, f"{what}: {name}") for name, value in values.items()}


def _number(value: Any, what: str) -> float:
    try:
        if not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise TaskError(f"benchmark: {what} must be a number, not {value!r}")


def side_of(number: int, manifest: str, server: ServerArguments) -> dict[str, Any]:
    """What the file of samples says of a side."""
    return {"generation": number, "manifest": manifest, "starts": starts(server)}


def turns_of(profiles: Sequence[LoadProfile]) -> list[tuple[int, LoadProfile]]:
    """The profiles cut into turns of two requests for each stream, each with its profile's place.

    The first turn of a profile has its warm-up.
    """
    return [
        (
            place,
            replace(
                profile,
                requests=min(2 * profile.concurrency, profile.requests - start),
                warmup_requests=profile.warmup_requests if start == 0 else 0,
                seed=profile.seed + start,
            ),
        )
        for place, profile in enumerate(profiles)
        for start in range(0, profile.requests, 2 * profile.concurrency)
    ]
