"""Greedy answers of a server as data, and how they are read from what three APIs send. Pure.

The shapes are those of OpenAI's `/v1/completions` and `/v1/chat/completions` and of SGLang's `/generate`, as SGLang
0.5.9 and 0.5.23 send them (`tests/data/sglang`). Log-probabilities are natural logarithms. A number that is none
becomes `null` on the way (SGLang writes its JSON by orjson), so that a token without a finite one is a sign and not a
gap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from crossgrade.jsontype import JSON

Endpoint = Literal["completions", "chat", "generate"]

PATHS: Mapping[Endpoint, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "generate": "/generate",
}
TOP = 2  # alternatives asked for at each token: enough to see whether a choice was a near tie


class AnswerShapeError(ValueError):
    """What came is not an answer of this API."""


@dataclass(frozen=True)
class Token:
    """One token as the API names it (its text, or its number from `/generate`).

    `logprob` is None where it is no finite number. `alternatives` are the likeliest tokens at this place, itself
    included.
    """

    name: str
    logprob: float | None
    alternatives: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> JSON:
        return [self.name, self.logprob, dict(self.alternatives)]

    @classmethod
    def from_json(cls, value: Any) -> Token:
        name, logprob, alternatives = value
        return cls(str(name), _finite(logprob), {str(key): float(each) for key, each in alternatives.items()})


@dataclass(frozen=True)
class Answer:
    """One answer. `error` is why there is none, "" normally: its kind before the first colon.

    `tokens` are empty where the API gives no log-probabilities. `prompt_tokens` is what the server counted, None
    where it did not say.
    """

    text: str = ""
    finish_reason: str = ""
    tokens: tuple[Token, ...] = ()
    prompt_tokens: int | None = None
    error: str = ""

    def to_json(self) -> dict[str, JSON]:
        return {
            "text": self.text,
            "finish_reason": self.finish_reason,
            "tokens": [token.to_json() for token in self.tokens],
            "prompt_tokens": self.prompt_tokens,
            "error": self.error,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Answer:
        """The reverse of `to_json`. Raises KeyError, TypeError or ValueError for data of another shape."""
        return cls(
            text=_text(value["text"]),
            finish_reason=_text(value["finish_reason"]),
            tokens=tuple(Token.from_json(token) for token in value["tokens"]),
            prompt_tokens=value["prompt_tokens"],
            error=_text(value["error"]),
        )


@dataclass(frozen=True)
class Pass:
    """All prompts asked once, at one concurrency; answers are in the order of the prompts.

    `scored` has, for each prompt, the tokens of the reference answer as this server weighs them when it is handed that
    answer: () where the API cannot do that. `number` counts the passes at this concurrency from 1.
    """

    concurrency: int
    number: int
    answers: tuple[Answer, ...]
    scored: tuple[tuple[Token, ...], ...] = ()

    def to_json(self) -> dict[str, JSON]:
        return {
            "concurrency": self.concurrency,
            "number": self.number,
            "answers": [answer.to_json() for answer in self.answers],
            "scored": [[token.to_json() for token in tokens] for tokens in self.scored],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Pass:
        return cls(
            concurrency=int(value["concurrency"]),
            number=int(value["number"]),
            answers=tuple(Answer.from_json(answer) for answer in value["answers"]),
            scored=tuple(tuple(Token.from_json(token) for token in tokens) for tokens in value["scored"]),
        )


@dataclass(frozen=True)
class ToolScore:
    """What an evaluation tool printed: `right` of `asked` questions, and how many requests failed as it says."""

    tool: str
    right: int
    asked: int
    failed: int = 0

    def to_json(self) -> dict[str, JSON]:
        return {"tool": self.tool, "right": self.right, "asked": self.asked, "failed": self.failed}


@dataclass(frozen=True)
class AnswerSheet:
    """Everything that one launch of a server answered. `task` are its answers to the questions with a known result."""

    passes: tuple[Pass, ...]
    task: tuple[Answer, ...] = ()
    tool: ToolScore | None = None

    def to_json(self) -> dict[str, JSON]:
        return {
            "schema": 1,
            "passes": [one.to_json() for one in self.passes],
            "task": [answer.to_json() for answer in self.task],
            "tool": self.tool.to_json() if self.tool else None,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AnswerSheet:
        """The reverse of `to_json`. Raises KeyError, TypeError or ValueError for data of another shape."""
        if value["schema"] != 1:
            raise ValueError(f"answers of schema {value['schema']}, this crossgrade knows schema 1")
        tool = value["tool"]
        return cls(
            passes=tuple(Pass.from_json(one) for one in value["passes"]),
            task=tuple(Answer.from_json(answer) for answer in value["task"]),
            tool=ToolScore(str(tool["tool"]), int(tool["right"]), int(tool["asked"]), int(tool["failed"]))
            if tool
            else None,
        )

    def at(self, concurrency: int) -> tuple[Pass, ...]:
        """Its passes at one concurrency, by number."""
        return tuple(sorted((one for one in self.passes if one.concurrency == concurrency), key=lambda one: one.number))

    def all_answers(self) -> tuple[Answer, ...]:
        return (*(answer for one in self.passes for answer in one.answers), *self.task)


# ---- requests


def request_body(
    endpoint: Endpoint, prompt: str, model: str, *, max_tokens: int, logprobs: bool, stop: Sequence[str] = ()
) -> dict[str, JSON]:
    """The body of a request for one greedy answer, not streamed."""
    stops: list[JSON] = list(stop)
    if endpoint == "generate":
        sampling: dict[str, JSON] = {"temperature": 0, "max_new_tokens": max_tokens}
        body: dict[str, JSON] = {"text": prompt, "sampling_params": {**sampling, **({"stop": stops} if stops else {})}}
        return body | ({"return_logprob": True, "top_logprobs_num": TOP} if logprobs else {})
    body = {"model": model, "max_tokens": max_tokens, "temperature": 0, **({"stop": stops} if stops else {})}
    if endpoint == "chat":
        body["messages"] = [{"role": "user", "content": prompt}]
        return body | ({"logprobs": True, "top_logprobs": TOP} if logprobs else {})
    body["prompt"] = prompt
    return body | ({"logprobs": TOP} if logprobs else {})


def scoring_body(
    endpoint: Endpoint, prompt: str, answer: str, model: str, prompt_tokens: int
) -> dict[str, JSON] | None:
    """The body of a request that has the server weigh an answer that is handed to it; None where the API cannot.

    `/generate` weighs the answer alone, `/v1/completions` with `echo` the prompt too. One token more is generated,
    since not every server takes 0.
    """
    if endpoint == "generate":
        return {
            "text": prompt + answer,
            "sampling_params": {"temperature": 0, "max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": max(0, prompt_tokens - 1),
        }
    if endpoint == "completions":
        return {
            "model": model,
            "prompt": prompt + answer,
            "max_tokens": 1,
            "temperature": 0,
            "echo": True,
            "logprobs": 1,
        }
    return None


# ---- answers


def read_answer(endpoint: Endpoint, value: object) -> Answer:
    """The answer in what a server sent with status 200. Raises AnswerShapeError."""
    if not isinstance(value, Mapping):
        raise AnswerShapeError("the answer is no object")
    if value.get("error") or value.get("object") == "error":
        raise AnswerShapeError(f"the server answered an error: {str(value)[:200]}")
    try:
        return _read_generate(value) if endpoint == "generate" else _read_openai(endpoint, value)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise AnswerShapeError(f"not an answer of {PATHS[endpoint]}: {type(error).__name__}: {error}") from error


def _read_generate(value: Mapping[str, Any]) -> Answer:
    meta = value["meta_info"]
    reason = meta.get("finish_reason")
    tops = meta.get("output_top_logprobs") or []
    tokens = []
    for place, (logprob, number, _) in enumerate(meta.get("output_token_logprobs") or []):
        top = tops[place] if place < len(tops) and tops[place] else []
        tokens.append(Token(str(number), _finite(logprob), _alternatives({str(one): each for each, one, _ in top})))
    return Answer(
        text=_text(value["text"]),
        finish_reason=str(reason.get("type", "")) if isinstance(reason, Mapping) else str(reason or ""),
        tokens=tuple(tokens),
        prompt_tokens=_count(meta.get("prompt_tokens")),
    )


def _read_openai(endpoint: Endpoint, value: Mapping[str, Any]) -> Answer:
    choice = value["choices"][0]
    usage = value.get("usage") or {}
    listed = choice.get("logprobs") or {}
    if endpoint == "chat":
        message = choice["message"]
        # What a reasoning parser put aside is part of the answer: it is what the model said first.
        text = _text(message.get("reasoning_content") or "") + _text(message.get("content") or "")
        tokens = [
            Token(
                _text(each["token"]),
                _finite(each["logprob"]),
                _alternatives({_text(top["token"]): top["logprob"] for top in each.get("top_logprobs") or []}),
            )
            for each in listed.get("content") or []
        ]
    else:
        text = _text(choice["text"])
        tokens = _completion_tokens(listed)
    return Answer(
        text=text,
        finish_reason=str(choice.get("finish_reason") or ""),
        tokens=tuple(tokens),
        prompt_tokens=_count(usage.get("prompt_tokens")),
    )


def _completion_tokens(listed: Mapping[str, Any]) -> list[Token]:
    names = listed.get("tokens") or []
    logprobs = listed.get("token_logprobs") or []
    tops = listed.get("top_logprobs") or []
    return [
        Token(
            _text(name),
            _finite(logprobs[place]),
            _alternatives(tops[place]) if place < len(tops) and tops[place] else {},
        )
        for place, name in enumerate(names)
    ]


def read_scored(endpoint: Endpoint, value: object, prompt_tokens: int) -> tuple[Token, ...]:
    """How a server weighed an answer that was handed to it (`scoring_body`), token by token.

    Raises AnswerShapeError.
    """
    try:
        if endpoint == "generate":
            meta = cast("Mapping[str, Any]", value)["meta_info"]
            listed = meta["input_token_logprobs"]
            counted = int(meta["prompt_tokens"])
            answer = listed[len(listed) - max(0, counted - prompt_tokens) :]
            return tuple(Token(str(number), _finite(logprob)) for logprob, number, _ in answer)
        whole = cast("Mapping[str, Any]", value)
        counted = int(whole["usage"]["prompt_tokens"])
        tokens = _completion_tokens(whole["choices"][0]["logprobs"])
        return tuple(Token(token.name, token.logprob) for token in tokens[prompt_tokens:counted])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise AnswerShapeError(f"not a weighed answer of {PATHS[endpoint]}: {type(error).__name__}: {error}") from error


def _alternatives(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: number for name, value in values.items() if (number := _finite(value)) is not None}


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text was expected, not {type(value).__name__}")
    return value


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
