"""Ask a server for greedy answers: each prompt at several concurrencies, twice at each, and what it thinks of others.

A server's answers at temperature 0 are not always the same: what is computed together in a batch changes the order of
additions, and with it the last bits. So every prompt is asked twice, in another order, and the difference between the
two is the yardstick for the difference between servers. Where the server has a prefix cache and lets it be emptied
(SGLang's `/flush_cache`), that is done before each pass, so that the second is computed as the first was.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from crossgrade.bench.given_answers import (
    PATHS,
    Answer,
    AnswerShapeError,
    AnswerSheet,
    Endpoint,
    Pass,
    Token,
    read_answer,
    read_scored,
    request_body,
    scoring_body,
)
from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON

if TYPE_CHECKING:
    import aiohttp

PASSES = 2
ERROR_LIMIT = 5  # failed requests after which a server is asked no more
DETAIL_CHARACTERS = 200
REFUSALS = (400, 404, 405, 415, 422, 501)  # a server that does not know log-probabilities says so by one of these
# Prompt and answer together that are weighed. Each token weighed costs the server memory for its whole vocabulary, and
# SGLang 0.5.9 holds all of a batch at once (SGLANG_ENABLE_LOGITS_PROCESSER_CHUNK is off): `/v1/completions`, where the
# prompt is weighed too, gets short ones only, one at a time.
SCORED_CHARACTERS = 16_000
ECHOED_CHARACTERS = 2_000
FLUSH_SECONDS = 30.0
NOT_ASKED = "not_asked: too many requests had failed"


@dataclass(frozen=True)
class Questionnaire:
    """What is asked.

    `concurrencies` are numbers of requests at any moment. `timeout` is seconds for one request. `task` are prompts
    whose answers have a known result, asked once, at the largest concurrency. `model` None takes the first that is
    listed.
    """

    prompts: tuple[str, ...]
    endpoint: Endpoint = "completions"
    model: str | None = None
    max_tokens: int = 64
    concurrencies: tuple[int, ...] = (1, 8)
    timeout: float = 120.0
    logprobs: bool = True
    task: tuple[str, ...] = ()
    task_max_tokens: int = 512
    task_stop: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold a key

    def __post_init__(self) -> None:
        if not self.prompts:
            raise TaskError("there is no prompt to ask")
        if not self.concurrencies or min(self.concurrencies) < 1:
            raise TaskError(f"concurrency is {list(self.concurrencies)}, at least 1 is needed")
        for name in ("max_tokens", "task_max_tokens"):
            if getattr(self, name) < 1:
                raise TaskError(f"{name} is {getattr(self, name)}, at least 1 is needed")
        if not self.timeout > 0:
            raise TaskError(f"timeout is {self.timeout} s, it must be above 0")

    def to_json(self) -> dict[str, JSON]:
        """All that the answers depend on but the texts of the prompts, and nothing secret."""
        return {
            "endpoint": self.endpoint,
            "model": self.model,
            "max_tokens": self.max_tokens,
            "concurrencies": list(self.concurrencies),
            "logprobs": self.logprobs,
            "task_max_tokens": self.task_max_tokens,
            "task_stop": list(self.task_stop),
        }


def ask(
    base_url: str,
    questionnaire: Questionnaire,
    references: Sequence[str] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> AnswerSheet:
    """All answers of the server at `base_url`. A failed request is an answer with an `error`.

    `references` are the answers that the server is to weigh, one for each prompt; without them its own first ones.
    Raises TaskError when the server does not say which model it serves.
    """
    return asyncio.run(_ask(base_url, questionnaire, references, tell))


async def _ask(
    base_url: str, asked: Questionnaire, references: Sequence[str] | None, tell: Callable[[str], None]
) -> AnswerSheet:
    import aiohttp

    from crossgrade.bench.load import first_model

    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=asked.timeout)
    async with aiohttp.ClientSession(
        base_url, connector=connector, timeout=timeout, headers=dict(asked.headers)
    ) as session:
        needs_name = asked.endpoint != "generate" and asked.model is None
        model = await first_model(session) if needs_name else asked.model or ""
        asker = _Asker(session, asked, model)
        await asker.see_whether_it_gives_logprobs()
        passes: list[Pass] = []
        for concurrency in asked.concurrencies:
            for number in range(1, PASSES + 1):
                tell(f"asking {len(asked.prompts)} prompts, {concurrency} at once, for the {_nth(number)} time")
                one = await asker.one_pass(concurrency, number)
                own = [answer.text for answer in (passes[0] if passes else one).answers]
                passes.append(await asker.weighed(one, own if references is None else references))
        task: tuple[Answer, ...] = ()
        if asked.task:
            tell(f"asking {len(asked.task)} questions")
            task = await asker.answers(
                asked.task, max(asked.concurrencies), asked.task_max_tokens, asked.task_stop, range(len(asked.task))
            )
        return AnswerSheet(tuple(passes), task)


def _nth(number: int) -> str:
    return {1: "first", 2: "second"}.get(number, f"{number}th")


class _Asker:
    def __init__(self, session: aiohttp.ClientSession, asked: Questionnaire, model: str) -> None:
        self._session = session
        self._asked = asked
        self._model = model
        self._logprobs = asked.logprobs
        self._failed = 0

    async def see_whether_it_gives_logprobs(self) -> None:
        """One request with them: a server that refuses it is asked without."""
        if not self._logprobs:
            return
        body = request_body(self._asked.endpoint, self._asked.prompts[0], self._model, max_tokens=1, logprobs=True)
        status, _ = await self._post(body)
        self._logprobs = status not in REFUSALS

    async def one_pass(self, concurrency: int, number: int) -> Pass:
        await self._empty_the_cache()
        order = list(range(len(self._asked.prompts)))
        if number > 1:
            random.Random(number).shuffle(order)  # noqa: S311 - nothing secret: a repeatable order
        answers = await self.answers(self._asked.prompts, concurrency, self._asked.max_tokens, (), order)
        return Pass(concurrency, number, answers)

    async def answers(
        self, prompts: Sequence[str], concurrency: int, max_tokens: int, stop: Sequence[str], order: Sequence[int]
    ) -> tuple[Answer, ...]:
        """One answer for each prompt, in their order; asked in the order given."""
        found = [Answer(error=NOT_ASKED)] * len(prompts)

        async def one(place: int) -> None:
            body = request_body(
                self._asked.endpoint,
                prompts[place],
                self._model,
                max_tokens=max_tokens,
                logprobs=self._logprobs,
                stop=stop,
            )
            found[place] = await self._answer(body)
            self._failed += bool(found[place].error)

        await self._in_turns(one, order, concurrency)
        return tuple(found)

    async def weighed(self, one: Pass, references: Sequence[str]) -> Pass:
        """The pass with what the server thinks of the reference answers; as it is where the API cannot tell."""
        echoes = self._asked.endpoint == "completions"
        most = ECHOED_CHARACTERS if echoes else SCORED_CHARACTERS
        places = [
            place
            for place, (prompt, reference) in enumerate(zip(self._asked.prompts, references, strict=True))
            if one.answers[place].prompt_tokens and reference and len(prompt) + len(reference) <= most
        ]
        if not self._logprobs or not places or self._failed >= ERROR_LIMIT:
            return one
        scored: list[tuple[Token, ...]] = [()] * len(references)

        async def weigh(place: int) -> bool:
            """Whether the server can do that at all."""
            counted = one.answers[place].prompt_tokens or 0
            body = scoring_body(
                self._asked.endpoint, self._asked.prompts[place], references[place], self._model, counted
            )
            if body is None:
                return False
            status, value = await self._post(body)
            try:
                scored[place] = read_scored(self._asked.endpoint, value, counted) if status == 200 else ()
            except AnswerShapeError:
                return False
            return status not in REFUSALS

        if not await weigh(places[0]):
            return one
        await self._in_turns(weigh, places[1:], 1 if echoes else one.concurrency)
        return replace(one, scored=tuple(scored))

    async def _in_turns(self, work: Callable[[int], Any], order: Sequence[int], concurrency: int) -> None:
        """Call `work` for each place, so many at once, until too many requests have failed."""
        waiting = iter(order)

        async def worker() -> None:
            for place in waiting:
                if self._failed >= ERROR_LIMIT:
                    return
                await work(place)

        await asyncio.gather(*(worker() for _ in range(concurrency)))

    async def _answer(self, body: Mapping[str, JSON]) -> Answer:
        status, value = await self._post(body)
        if status is None:
            return Answer(error=str(value))
        if status != 200:
            return Answer(error=f"http_status: {status}: {str(value)[:DETAIL_CHARACTERS]}")
        try:
            return read_answer(self._asked.endpoint, value)
        except AnswerShapeError as error:
            return Answer(error=f"malformed_answer: {str(error)[:DETAIL_CHARACTERS]}")

    async def _post(self, body: Mapping[str, JSON]) -> tuple[int | None, object]:
        """Status and value of an answer; no status, and in words why, where none came."""
        import aiohttp

        try:
            async with self._session.post(PATHS[self._asked.endpoint], json=dict(body)) as response:
                data = await response.read()
                if response.status != 200:
                    return response.status, data.decode("utf-8", "replace")
        except asyncio.TimeoutError:
            return None, f"timeout: no answer within {self._asked.timeout:g} s"
        except aiohttp.ClientConnectorError as error:
            return None, f"connect: {error}"
        except (aiohttp.ClientError, OSError) as error:
            return None, f"disconnected: {str(error) or type(error).__name__}"
        try:
            return 200, json.loads(data)
        except (ValueError, RecursionError):
            return None, f"malformed_answer: not JSON: {data[:DETAIL_CHARACTERS]!r}"

    async def _empty_the_cache(self) -> None:
        import aiohttp

        try:
            async with self._session.post("/flush_cache", timeout=aiohttp.ClientTimeout(FLUSH_SECONDS)) as response:
                await response.read()  # 404 of a server that has none, or whatever it says: it is an offer
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
            return
