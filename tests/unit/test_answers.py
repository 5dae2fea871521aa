"""Answers as SGLang really streamed them (tests/data/sglang), and what is wrong with others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossgrade.bench.acceptance import acceptance_of_requests, parse_metrics, parse_server_info
from crossgrade.bench.answers import Answer, RequestError
from crossgrade.bench.event_stream import EventStreamParser
from crossgrade.bench.load_profile import Endpoint

DATA = Path(__file__).parents[1] / "data" / "sglang"
VERSIONS = ("0.5.9", "0.5.23")


def answered(endpoint: Endpoint, stream: bytes) -> Answer:
    answer = Answer(endpoint)
    for number, data in enumerate(EventStreamParser().feed(stream)):
        answer.take(data, float(number))
    return answer


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("endpoint", ["completions", "chat", "generate"])
def test_real_streams(version: str, endpoint: Endpoint) -> None:
    answer = answered(endpoint, (DATA / version / f"{endpoint}.sse").read_bytes())
    answer.check_end("text/event-stream")
    assert answer.usage == 6
    assert len(answer.times) in (5, 6)  # the servers put two tokens into one event now and then
    assert answer.input_tokens is not None
    assert answer.input_tokens >= 3
    assert (answer.verify_steps, answer.only_nonsense) == (None, False)


def generated(*events: tuple[str, int], **meta: Any) -> bytes:
    lines = [
        b"data: " + json.dumps({"text": text, "meta_info": {"completion_tokens": count, **meta}}).encode() + b"\n\n"
        for text, count in events
    ]
    return b"".join(lines) + b"data: [DONE]\n\n"


def test_generate_sends_all_text_so_far_or_only_what_is_new() -> None:
    cumulative = answered("generate", generated(("ab", 1), ("abc", 2), ("abc", 3), ("abcd", 4)))
    incremental = answered("generate", generated(("abcde", 1), ("f", 2), ("", 3), ("g", 4)))
    for answer in (cumulative, incremental):
        assert answer.times == [0.0, 1.0, 2.0, 3.0]  # a token may bring no text of its own
        assert answer.usage == 4


def test_an_event_that_repeats_the_last_one_is_no_token() -> None:
    answer = answered("generate", generated(("ab", 1), ("ab", 1), ("abc", 2)))
    assert answer.times == [0.0, 2.0]


def test_acceptance_length_is_tokens_by_steps_over_all_requests() -> None:
    one = answered("generate", generated(("a", 3), ("b", 9), spec_verify_ct=3, spec_accept_length=3.0))
    other = answered("generate", generated(("a", 3), ("b", 4), spec_verify_ct=4))
    found = acceptance_of_requests([one, other])
    assert found is not None
    assert (found.length, found.source) == (13 / 7, "requests")
    assert acceptance_of_requests([one, Answer()]) is None
    assert acceptance_of_requests([]) is None


def test_acceptance_length_as_the_server_tells_it() -> None:
    """The real answers are of servers without speculative decoding; the figure is put where the sources put it."""
    for version in VERSIONS:
        text = (DATA / version / "server_info.json").read_text()
        assert parse_server_info(text) is None
        told = json.loads(text)
        told["internal_states"] = [{**told["internal_states"][0], "avg_spec_accept_length": n} for n in (2.0, 3.0)]
        assert parse_server_info(json.dumps(told)) == 2.5
    metrics = '# HELP x\nsglang:spec_accept_length{engine_type="unified",tp_rank="0"} 2.25\nsglang:spec_accept_rate 9\n'
    assert parse_metrics(metrics) == 2.25
    assert parse_metrics("sglang:spec_accept_length 0.0\n") is None
    assert parse_metrics('sglang:spec_accept_length{a="b"} NaN\nsglang:spec_accept_length e5\n') is None
    for text in ("", "[1]", '{"internal_states": 3}', '{"internal_states": [3, {"avg_spec_accept_length": "x"}]}'):
        assert parse_server_info(text) is None
        assert parse_metrics(text) is None


def completed(*texts: str) -> bytes:
    events = [json.dumps({"choices": [{"index": 0, "text": text}]}) for text in texts]
    return b"".join(f"data: {event}\n\n".encode() for event in events) + b"data: [DONE]\n\n"


@pytest.mark.parametrize("token", ["!", "!!", "nan", " NaN", "\ufffd", "<unk>"])
def test_text_that_stands_for_numbers_that_are_none(token: str) -> None:
    answer = answered("completions", completed(*[token] * 40))
    with pytest.raises(RequestError, match="numbers that are none") as caught:
        answer.check_end("text/event-stream")
    assert caught.value.kind == "nonsense_output"


@pytest.mark.parametrize(
    "texts", [["tok"] * 40, ["!"] * 7, ["Oh", *["!"] * 40], ["\n"] * 40, [*["!"] * 40, "a banana"]]
)
def test_other_dull_text_is_none_of_the_clients_business(texts: list[str]) -> None:
    answered("completions", completed(*texts)).check_end("text/event-stream")


@pytest.mark.parametrize(
    ("endpoint", "data", "kind"),
    [
        ("completions", "[" * 100_000, "malformed_stream"),
        ("completions", "NaN", "malformed_stream"),
        ("completions", '{"choices": [3]}', "malformed_stream"),
        ("completions", '{"text": "a", "meta_info": {}}', "malformed_stream"),
        ("generate", '{"choices": []}', "malformed_stream"),
        ("generate", '{"text": 3, "meta_info": {}}', "malformed_stream"),
        ("generate", '{"error": {"message": "too long"}}', "server_error"),
        ("generate", '{"text": "", "meta_info": {"finish_reason": {"type": "abort"}}}', "server_error"),
        ("chat", '{"choices": [{"delta": {}, "finish_reason": "abort"}]}', "server_error"),
    ],
)
def test_wrong_events_are_named(endpoint: Endpoint, data: str, kind: str) -> None:
    with pytest.raises(RequestError) as caught:
        Answer(endpoint).take(data, 0.0)
    assert caught.value.kind == kind


@given(
    st.sampled_from(["completions", "chat", "generate"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["choices", "text", "delta", "content", "meta_info", "usage", "completion_tokens", "finish_reason"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ),
)
def test_whatever_json_comes_it_is_taken_or_a_request_error(endpoint: Endpoint, event: Any) -> None:
    answer = Answer(endpoint)
    try:
        answer.take(json.dumps(event), 1.0)
    except RequestError:
        return
    assert all(moment == 1.0 for moment in answer.times)
    assert answer.usage is None or answer.usage >= 0
