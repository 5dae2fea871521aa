"""The verdict on one start of a server and one request to it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from crossgrade.bench.answers import Answer as Arrived
from crossgrade.bench.answers import RequestError
from crossgrade.bench.event_stream import EventStreamParser
from crossgrade.bench.given_answers import PATHS, Endpoint, read_answer
from crossgrade.bench.last_words import telling_line
from crossgrade.bench.one_request import Answer
from crossgrade.gates.answer_faults import WORDS, fault_of
from crossgrade.gates.verdict import Finding, Verdict
from crossgrade.jsontype import JSON

GATE = "server"
ANSWER_CHARACTERS = 500  # how much of an answer that was not expected is kept as evidence
GENERATES: Mapping[str, Endpoint] = {path: endpoint for endpoint, path in PATHS.items()}


@dataclass(frozen=True)
class Asked:
    """The request of the check: where it went, the status that it must have, and whether a stream was asked for."""

    path: str
    expect_status: int = 200
    stream: bool = False


@dataclass(frozen=True)
class Observed:
    """What one start of the server showed.

    `problem` is why it did not become healthy, or ended or hung while it was in use, "" for neither. `unhealthy` is the
    answer about health that it gave after the request, "" for a good one. `stacks` says where the stacks of a server
    that hung are, `ended_workers` which of its processes ended, `gpu_memory` what became of the GPUs' memory.
    """

    start_seconds: float = 0.0
    answer: Answer | None = None
    problem: str = ""
    last_words: tuple[str, ...] = ()
    log: str = ""
    health_path: str = ""
    unhealthy: str = ""
    stacks: str = ""
    ended_workers: str = ""
    gpu_memory: str = ""
    server_info: str = ""


def judge_server(observed: Observed, asked: Asked | None) -> Verdict:
    """Passed when the server became healthy, the request, if any, was answered as expected, and it stayed healthy.

    Processes of it that ended meanwhile are a warning: some servers end helpers that they need no more.
    """
    evidence: dict[str, JSON] = {"log": observed.log, "last_words": list(observed.last_words)}
    if observed.stacks:
        evidence["stacks"] = observed.stacks
    if observed.problem:
        last = telling_line(observed.last_words)
        reason = f"{observed.problem}: {last}" if last else f"{observed.problem}; it said nothing"
        return _failed(reason + _stacks(observed), "start", observed.problem, evidence, {})
    told = {"health_path": observed.health_path, "gpu_memory": observed.gpu_memory, "server_info": observed.server_info}
    figures: dict[str, JSON] = {"start_seconds": round(observed.start_seconds, 3)}
    figures |= {name: text for name, text in told.items() if text}
    reason = f"healthy after {observed.start_seconds:.1f} s"
    answer = observed.answer
    if asked is not None and answer is not None:
        figures |= {"status": answer.status, "answer_seconds": round(answer.seconds, 3)}
        got = f"status {answer.status}" if answer.status is not None else answer.text
        reason += f"; {asked.path} answered {got} after {answer.seconds:.1f} s"
        if problem := _wrong(answer, asked, got):
            if answer.status is not None:
                evidence["answer"] = answer.text[:ANSWER_CHARACTERS]
            return _failed(f"{asked.path}: {problem}{_stacks(observed)}", asked.path, problem, evidence, figures)
    if observed.unhealthy:
        problem = f"it was healthy, and after the request {observed.health_path} answered {observed.unhealthy}"
        return _failed(problem + _stacks(observed), observed.health_path, problem, evidence, figures)
    if not observed.ended_workers:
        return Verdict(GATE, "passed", reason, (), figures)
    warning = Finding("warning", "processes", observed.ended_workers, evidence)
    return Verdict(GATE, "passed", f"{reason}; {observed.ended_workers}", (warning,), figures)


def _failed(reason: str, subject: str, message: str, evidence: dict[str, JSON], figures: dict[str, JSON]) -> Verdict:
    return Verdict(GATE, "failed", reason, (Finding("failure", subject, message, evidence),), figures)


def _stacks(observed: Observed) -> str:
    return f"; {observed.stacks}" if observed.stacks else ""


def _wrong(answer: Answer, asked: Asked, got: str) -> str:
    """What is wrong with an answer, "" for nothing. Text is looked at where the request is one that generates."""
    if answer.status != asked.expect_status:
        return f"{got} instead of status {asked.expect_status}"
    if answer.status != 200 or asked.path.partition("?")[0] not in GENERATES:
        return ""
    endpoint = GENERATES[asked.path.partition("?")[0]]
    try:
        return _streamed(answer.text, endpoint) if asked.stream else _whole(answer.text, endpoint)
    except ValueError as error:
        return f"status 200, and what it sent is no answer of this interface: {error}"


def _whole(body: str, endpoint: Endpoint) -> str:
    """What is wrong with a whole answer. Raises ValueError for what is none."""
    fault = fault_of(read_answer(endpoint, json.loads(body)))
    return f"the answer {WORDS[fault.kind]}: {fault.detail}" if fault else ""


def _streamed(body: str, endpoint: Endpoint) -> str:
    """What is wrong with a stream of events."""
    arrived = Arrived(endpoint)
    try:
        for event in EventStreamParser().feed(body.encode()):
            arrived.take(event, 0.0)
        arrived.check_end("text/event-stream")
    except RequestError as error:
        return f"{error.kind}: {error.detail[:ANSWER_CHARACTERS]}"
    return ""
