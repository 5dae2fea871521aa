"""What a load is, as data (`LoadProfile`). Pure; times are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON

Endpoint = Literal["completions", "chat"]
PATHS: Mapping[Endpoint, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True)
class LoadProfile:
    """A closed loop: `concurrency` streams at any moment, the next request as soon as one ends.

    `warmup_requests` are sent first and discarded, `requests` are measured. Prompts are taken from `prompts`
    in an order that `seed` decides, or made from `seed` (`prompt_words` each, all different) when there are
    none. `model` None takes the first that the server lists. `timeout` bounds one request; after
    `error_limit` failed requests the load ends. `extra_body` is added to each request.
    `name` is what a playbook with several profiles calls this one.

    The defaults suit the rehearsal's server, where a token takes 1 to 2 ms: about 0.7 s, with one stream. On a
    machine with two cores, a second stream would leave none for the client and whatever else runs: the spread
    between launches was two to three times as large. Longer launches hardly narrowed it, since a busy machine
    stays busy for seconds; more pairs of short ones did.
    """

    concurrency: int = 1
    requests: int = 6
    warmup_requests: int = 1
    max_tokens: int = 96
    prompts: tuple[str, ...] = ()
    prompt_words: int = 24
    seed: int = 0
    timeout: float = 60.0
    endpoint: Endpoint = "completions"
    model: str | None = None
    error_limit: int = 5
    extra_body: Mapping[str, JSON] = field(default_factory=lambda: {"ignore_eos": True})
    name: str = ""

    def __post_init__(self) -> None:
        least = {"concurrency": 1, "requests": 1, "warmup_requests": 0, "max_tokens": 1, "error_limit": 1}
        for name, lowest in least.items():
            if getattr(self, name) < lowest:
                raise TaskError(f"load profile: {name} is {getattr(self, name)}, at least {lowest} is needed")
        if not self.timeout > 0:
            raise TaskError(f"load profile: timeout is {self.timeout} s, it must be above 0")
        if self.endpoint not in PATHS:
            raise TaskError(f"load profile: endpoint is {self.endpoint!r}, not one of {', '.join(PATHS)}")

    def to_json(self) -> dict[str, JSON]:
        """What is not said by a profile is left out where it came later: verdicts on record go by this text."""
        said: dict[str, JSON] = {"name": self.name} if self.name else {}
        return {
            **said,
            "concurrency": self.concurrency,
            "requests": self.requests,
            "warmup_requests": self.warmup_requests,
            "max_tokens": self.max_tokens,
            "prompts": list(self.prompts),
            "prompt_words": self.prompt_words,
            "seed": self.seed,
            "timeout": self.timeout,
            "endpoint": self.endpoint,
            "model": self.model,
            "error_limit": self.error_limit,
            "extra_body": dict(self.extra_body),
        }
