"""What a load is, as data (`LoadProfile`). Pure; times are seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from crossgrade.bench.lengths import Lengths
from crossgrade.bench.prompt_files import PromptSet
from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON

Endpoint = Literal["completions", "chat", "generate"]
PATHS: Mapping[Endpoint, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "generate": "/generate",  # SGLang's own
}
Arrivals = Literal["poisson", "constant"]
ARRIVALS: tuple[Arrivals, ...] = ("poisson", "constant")
Tool = Literal["builtin", "sglang", "guidellm", "aiperf"]
TOOLS: tuple[Tool, ...] = ("builtin", "sglang", "guidellm", "aiperf")


@dataclass(frozen=True)
class LoadProfile:
    """One load. Without a `rate` it is a closed loop: `concurrency` streams at any moment, the next request as soon as
    one ends. With one it is an open loop: requests are sent at moments that were fixed beforehand, `rate` of them a
    second, `poisson` or `constant` apart, whatever the server does, and every latency counts from that moment.

    `warmup_requests` are sent first and discarded, `requests` are measured. Prompts are taken from `prompts` or
    `prompt_set` in an order that `seed` decides, or made from `seed` (`prompt_words` each, all different) when there
    are none. `prompt_lengths` (words) and `output_lengths` (tokens) are drawn from instead of `prompt_words` and
    `max_tokens`; what a prompt of a file says of its own answer goes before both. `shared_prefix_share` of the prompts
    (0 to 1) begin with the same `shared_prefix_words` words. `model` None takes the first that the server lists.
    `timeout` bounds one request; after `error_limit` failed requests the load ends. `extra_body` is added to each
    request; of the endpoint `generate` to its `sampling_params`. `name` is what a playbook with several profiles calls
    this one.

    Of an open loop, `most_in_flight` requests are sent at once at most; those that are due meanwhile wait, at most
    `queue_limit` of them, and one more has failed (`not_sent`).

    `tool` is what puts the load on: our own client, or another program that is installed, called as `tool_command`
    (without one, by its usual name) and told `tool_arguments` beside what follows from the profile.

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
    rate: float | None = None
    arrivals: Arrivals = "poisson"
    most_in_flight: int = 256
    queue_limit: int = 256
    prompt_lengths: Lengths | None = None
    output_lengths: Lengths | None = None
    prompt_set: PromptSet | None = None
    shared_prefix_words: int = 0
    shared_prefix_share: float = 1.0
    tool: Tool = "builtin"
    tool_command: tuple[str, ...] = ()
    tool_arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        least = {
            "concurrency": 1,
            "requests": 1,
            "warmup_requests": 0,
            "max_tokens": 1,
            "error_limit": 1,
            "most_in_flight": 1,
            "queue_limit": 0,
            "shared_prefix_words": 0,
        }
        for name, lowest in least.items():
            if getattr(self, name) < lowest:
                raise TaskError(f"load profile: {name} is {getattr(self, name)}, at least {lowest} is needed")
        if not self.timeout > 0:
            raise TaskError(f"load profile: timeout is {self.timeout} s, it must be above 0")
        if self.rate is not None and not (self.rate > 0 and math.isfinite(self.rate)):
            raise TaskError(f"load profile: rate is {self.rate} requests/s, it must be above 0")
        if not 0 <= self.shared_prefix_share <= 1:
            raise TaskError(f"load profile: shared_prefix_share is {self.shared_prefix_share}, not from 0 to 1")
        for name, known in (("endpoint", tuple(PATHS)), ("arrivals", ARRIVALS), ("tool", TOOLS)):
            if getattr(self, name) not in known:
                value = getattr(self, name)
                raise TaskError(f"load profile: {name} is {value!r}, not one of {', '.join(known)}")
        if self.prompts and self.prompt_set:
            raise TaskError("load profile: prompts are given as texts and as a file")

    def to_json(self) -> dict[str, JSON]:
        """What a profile does not say is left out where it came later: verdicts on record go by this text."""
        said: dict[str, JSON] = {"name": self.name} if self.name else {}
        if self.rate is not None:
            said |= {
                "rate": self.rate,
                "arrivals": self.arrivals,
                "most_in_flight": self.most_in_flight,
                "queue_limit": self.queue_limit,
            }
        if self.prompt_lengths:
            said["prompt_lengths"] = self.prompt_lengths.to_json()
        if self.output_lengths:
            said["output_lengths"] = self.output_lengths.to_json()
        if self.prompt_set:
            said["prompt_set"] = self.prompt_set.to_json()
        if self.shared_prefix_words:
            said["shared_prefix_words"] = self.shared_prefix_words
            said["shared_prefix_share"] = self.shared_prefix_share
        if self.tool != "builtin":
            said |= {
                "tool": self.tool,
                "tool_command": list(self.tool_command),
                "tool_arguments": list(self.tool_arguments),
            }
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
