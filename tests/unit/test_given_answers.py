"""Answers as SGLang 0.5.9 and 0.5.23 send them (recorded on a machine without a GPU, shortened), and broken ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from crossgrade.bench.given_answers import (
    PATHS,
    Answer,
    AnswerShapeError,
    AnswerSheet,
    Endpoint,
    Pass,
    Token,
    ToolScore,
    read_answer,
    read_scored,
    request_body,
    scoring_body,
)

COMPLETION: dict[str, Any] = {
    "id": "d48f7fae",
    "object": "text_completion",
    "model": "m",
    "choices": [
        {
            "index": 0,
            "text": " word366 word110",
            "logprobs": {
                "text_offset": [-1, -1],
                "token_logprobs": [-3.857832670211792, -2.972825765609741],
                "tokens": ["word366", "word110"],
                "top_logprobs": [
                    {"word366": -3.857832670211792, "word160": -4.065884590148926},
                    {"word110": -2.972825765609741, "word247": -3.4504239559173584},
                ],
            },
            "finish_reason": "length",
            "matched_stop": None,
        }
    ],
    "usage": {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2},
}
GENERATED: dict[str, Any] = {
    "text": " word366 word110",
    "output_ids": [370, 114],
    "meta_info": {
        "finish_reason": {"type": "length", "length": 2},
        "prompt_tokens": 3,
        "input_token_logprobs": [[None, 7, None]],
        "output_token_logprobs": [[-3.857832670211792, 370, None], [-2.972825765609741, 114, None]],
        "output_top_logprobs": [
            [[-3.857832670211792, 370, None], [-4.065884590148926, 164, None]],
            [[-2.972825765609741, 114, None], [-3.4504239559173584, 251, None]],
        ],
        "completion_tokens": 2,
    },
}
CHAT: dict[str, Any] = {
    "choices": [
        {
            "message": {"role": "assistant", "content": "Yes.", "reasoning_content": "Let me see. "},
            "logprobs": {
                "content": [{"token": "Yes", "logprob": -0.1, "top_logprobs": [{"token": "Yes", "logprob": -0.1}]}]
            },
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 9},
}


def test_the_three_apis() -> None:
    completed = read_answer("completions", COMPLETION)
    assert completed.text == " word366 word110"
    assert completed.finish_reason == "length"
    assert completed.prompt_tokens == 3
    assert completed.tokens[0].name == "word366"
    assert completed.tokens[0].alternatives["word160"] == pytest.approx(-4.0659, abs=1e-4)
    generated = read_answer("generate", GENERATED)
    assert [token.name for token in generated.tokens] == ["370", "114"]
    assert [token.logprob for token in generated.tokens] == [token.logprob for token in completed.tokens]
    assert generated.finish_reason == "length"
    chatted = read_answer("chat", CHAT)
    assert chatted.text == "Let me see. Yes."
    assert chatted.tokens == (Token("Yes", -0.1, {"Yes": -0.1}),)


def test_without_log_probabilities() -> None:
    plain = json.loads(json.dumps(COMPLETION))
    plain["choices"][0]["logprobs"] = None
    assert read_answer("completions", plain) == Answer(" word366 word110", "length", (), 3)


def test_null_and_nan_are_no_numbers() -> None:
    for none in ("null", "NaN", "-Infinity"):
        text = json.dumps(COMPLETION).replace("[-3.857832670211792, ", f"[{none}, ")
        assert read_answer("completions", json.loads(text)).tokens[0].logprob is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"choices": []},
        {"choices": [{"text": None}]},
        {"choices": [{"text": "a", "logprobs": {"tokens": ["a"]}}]},
        {"error": {"message": "CUDA error"}},
        {"object": "error", "message": "too long"},
    ],
)
def test_what_is_no_answer(value: object) -> None:
    for endpoint in PATHS:
        with pytest.raises(AnswerShapeError):
            read_answer(endpoint, value)


def test_weighing_a_given_answer() -> None:
    """Only what follows the prompt counts, and not the token that was generated after it."""
    echoed = json.loads(json.dumps(COMPLETION))
    listed = echoed["choices"][0]["logprobs"]
    listed["tokens"] = ["a", "b", "c", "word366", "word110", "more"]
    listed["token_logprobs"] = [None, -1.0, -2.0, -3.0, -4.0, -5.0]
    listed["top_logprobs"] = [None] * 6
    echoed["usage"]["prompt_tokens"] = 5
    assert read_scored("completions", echoed, 3) == (Token("word366", -3.0), Token("word110", -4.0))
    weighed = json.loads(json.dumps(GENERATED))
    weighed["meta_info"]["prompt_tokens"] = 5
    weighed["meta_info"]["input_token_logprobs"] = [[None, 3, None], [-3.0, 370, None], [-4.0, 114, None]]
    assert read_scored("generate", weighed, 3) == (Token("370", -3.0), Token("114", -4.0))
    with pytest.raises(AnswerShapeError):
        read_scored("completions", {"choices": []}, 3)


@pytest.mark.parametrize("endpoint", ["completions", "chat", "generate"])
def test_requests_are_greedy(endpoint: Endpoint) -> None:
    body = request_body(endpoint, "Hello", "m", max_tokens=7, logprobs=True, stop=("\n",))
    sampling = body["sampling_params"] if endpoint == "generate" else body
    assert isinstance(sampling, dict)
    assert sampling["temperature"] == 0
    assert sampling["stop"] == ["\n"]
    assert sampling["max_new_tokens" if endpoint == "generate" else "max_tokens"] == 7
    assert "stream" not in body
    without = request_body(endpoint, "Hello", "m", max_tokens=7, logprobs=False)
    assert not {"logprobs", "return_logprob", "stop"} & set(without)


def test_only_the_answer_is_weighed_where_the_api_can() -> None:
    body = scoring_body("generate", "Hello", " world", "m", 5)
    assert body is not None
    assert (body["text"], body["logprob_start_len"]) == ("Hello world", 4)
    assert scoring_body("chat", "Hello", " world", "m", 5) is None


def test_a_sheet_as_data_and_back() -> None:
    answer = read_answer("completions", COMPLETION)
    broken = Answer(error="timeout: no answer within 3 s")
    sheet = AnswerSheet(
        passes=(Pass(4, 2, (broken,)), Pass(4, 1, (answer,), ((Token("a", None),),))),
        task=(answer,),
        tool=ToolScore("sgl_eval", 3, 4, 1),
    )
    assert AnswerSheet.from_json(json.loads(json.dumps(sheet.to_json()))) == sheet
    assert [one.number for one in sheet.at(4)] == [1, 2]
    sheets: list[dict[str, Any]] = [
        {},
        {"schema": 2},
        {**sheet.to_json(), "passes": 3},
        {**sheet.to_json(), "task": [{}]},
    ]
    for damaged in sheets:
        with pytest.raises((KeyError, TypeError, ValueError)):
            AnswerSheet.from_json(damaged)
