"""What has arrived of one answer, event by event, and whether it is a good one. Pure; the clock is the caller's.

The events are those of OpenAI's API (`/v1/completions`, `/v1/chat/completions`) and of SGLang's own `/generate`, which
sends the whole text so far, or with `--incremental-streaming-output` only what is new, and `meta_info` in each event.
Seen in the streams of SGLang 0.5.9 and 0.5.23.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from crossgrade.bench.load_profile import Endpoint
from crossgrade.bench.samples import ErrorKind

DONE = "[DONE]"
ABORTED = ("abort", "error")  # finish reasons that mean a failure (SGLang says `abort`)
# Logits that are not a number give token 0, which is `!` in many vocabularies (vllm issue 13035, OpenRLHF issue 1165);
# others show the number itself or a replacement character.
NOT_A_NUMBER = re.compile(r"(?:!|\ufffd|nan|null|<unk>|[\s,;])*", re.IGNORECASE)
LEAST_CHUNKS_TO_JUDGE = 8  # of a shorter answer nothing is said
KEPT_CHARACTERS = 64


class RequestError(Exception):
    """A request that failed; `kind` is for counting, `detail` for people."""

    def __init__(self, kind: ErrorKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


@dataclass
class Answer:
    """`times` are of time.monotonic(), one for each event with text; the counts are what the server says."""

    endpoint: Endpoint = "completions"
    times: list[float] = field(default_factory=list)
    usage: int | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    verify_steps: int | None = None  # of speculative decoding: how often the large model was asked
    done: bool = False
    ended: float = 0.0  # of time.monotonic(), when the end was told
    beginning: str = ""  # of the text
    only_nonsense: bool = True  # so far
    _length: int = 0  # of /generate's text so far

    def take(self, data: str, now: float) -> None:
        """One event's data, which was there at `now`. Raises RequestError."""
        if data == DONE:
            self.done, self.ended = True, now
            return
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            raise RequestError("malformed_stream", f"an event is not JSON: {data}") from None
        if not isinstance(event, dict):
            raise RequestError("malformed_stream", f"an event is not an object: {data}")
        if event.get("error") or event.get("object") == "error":
            raise RequestError("server_error", data)
        if self.endpoint == "generate":
            self._take_generate(event, data, now)
        else:
            self._take_openai(event, data, now)

    def _take_openai(self, event: dict[str, Any], data: str, now: float) -> None:
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.usage = _count(usage, "completion_tokens", self.usage)
            self.input_tokens = _count(usage, "prompt_tokens", self.input_tokens)
            details = usage.get("prompt_tokens_details")
            if isinstance(details, dict):
                self.cached_tokens = _count(details, "cached_tokens", self.cached_tokens)
        choices = event.get("choices")
        if not isinstance(choices, list):
            raise RequestError("malformed_stream", f"an event has no choices: {data}")
        for choice in choices:
            if not isinstance(choice, dict):
                raise RequestError("malformed_stream", f"a choice is not an object: {data}")
            if text := _text(choice):
                self._arrived(text, now)
            if choice.get("finish_reason") in ABORTED:
                raise RequestError("server_error", f"the server aborted the generation: {data}")

    def _take_generate(self, event: dict[str, Any], data: str, now: float) -> None:
        text, meta = event.get("text"), event.get("meta_info")
        if not isinstance(text, str) or not isinstance(meta, dict):
            raise RequestError("malformed_stream", f"an event has no text and meta_info: {data}")
        before = self.usage
        self.usage = _count(meta, "completion_tokens", self.usage)
        self.input_tokens = _count(meta, "prompt_tokens", self.input_tokens)
        self.cached_tokens = _count(meta, "cached_tokens", self.cached_tokens)
        self.verify_steps = _count(meta, "spec_verify_ct", self.verify_steps)
        # A token may bring no text of its own (half a character), so that the count decides where there is one.
        grown = len(text) != self._length if self.usage is None else self.usage > (before or 0)
        if grown:
            cumulative = len(text) >= self._length
            self._arrived(text[self._length :] if cumulative else text, now)
        self._length = len(text)
        reason = meta.get("finish_reason")
        if isinstance(reason, dict) and reason.get("type") in ABORTED:
            raise RequestError("server_error", f"the server aborted the generation: {data}")

    def _arrived(self, text: str, now: float) -> None:
        self.times.append(now)
        if self.only_nonsense:
            self.only_nonsense = NOT_A_NUMBER.fullmatch(text) is not None
            if len(self.beginning) < KEPT_CHARACTERS:
                self.beginning = (self.beginning + text)[:KEPT_CHARACTERS]

    def check_end(self, content_type: str) -> None:
        """Whether what came is a whole answer. Raises RequestError."""
        if not self.done:
            detail = f"{len(self.times)} chunks, then the end without {DONE} (Content-Type: {content_type})"
            raise RequestError("truncated_stream" if self.times else "malformed_stream", detail)
        if not self.times and not self.usage:
            raise RequestError("empty_output", "the stream has no token")
        if self.only_nonsense and len(self.times) >= LEAST_CHUNKS_TO_JUDGE and self.beginning.strip():
            raise RequestError("nonsense_output", f"the whole text is like {self.beginning!r}: numbers that are none")


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta")
    found = (delta.get("content") or delta.get("reasoning_content")) if isinstance(delta, dict) else choice.get("text")
    return found if isinstance(found, str) else ""


def _count(counts: dict[str, Any], name: str, otherwise: int | None) -> int | None:
    value = counts.get(name)
    return value if type(value) is int and value >= 0 else otherwise
