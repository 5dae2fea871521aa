"""How many requests a server has, from what it answers; and when waiting for them ends."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from crossgrade.bench.draining import Drained, InFlight, count, ends_when_done, wait_until_idle
from crossgrade.knowledge import Row, table


def row(path: str) -> Row:
    return next(row for row in table("load_endpoints") if str(row["path"]).startswith(path))


# As sglang 0.5.9 and 0.5.23 write them (srt/entrypoints/v1_loads.py, http_server.py), shortened.
LOADS = {
    "version": "0.5.23",
    "loads": [
        {"dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 2, "token_usage": 0.1},
        {"dp_rank": 1, "num_running_reqs": 1, "num_waiting_reqs": 0, "token_usage": 0.0},
    ],
}
GET_LOAD = [{"rid": None, "dp_rank": 0, "num_reqs": 4, "num_waiting_reqs": 1, "num_tokens": 99, "ts_tic": 1.5}]
METRICS = """# HELP vllm:num_requests_running Number of requests currently running.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m"} 7.0
"""


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/loads", json.dumps(LOADS), 6),
        ("/get_load", json.dumps(GET_LOAD), 4),
        ("/metrics", METRICS, 6),
        ("/metrics", "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n", 0),
    ],
)
def test_the_number_of_requests(path: str, body: str, expected: int) -> None:
    assert count(row(path), body.encode()) == expected


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/loads", "{}"),
        ("/v1/loads", '{"loads": []}'),  # no rank has answered: that is not the same as no request
        ("/v1/loads", '{"loads": [{"num_running_reqs": 0}]}'),
        ("/v1/loads", "<html>"),
        ("/get_load", "[3]"),
        ("/metrics", "other_metric 0\n"),
    ],
)
def test_an_answer_of_another_shape_is_no_zero(path: str, body: str) -> None:
    with pytest.raises(ValueError, match=r"no ranks|no number|metrics|Expecting value"):
        count(row(path), body.encode())


def test_which_servers_finish_after_sigterm() -> None:
    assert ends_when_done("sglang")
    assert not ends_when_done("vllm")
    assert not ends_when_done("")


def wait(answers: list[int | None], here: Callable[[int], bool] = lambda _: True, timeout: float = 1e9) -> Drained:
    looks = 0

    def there() -> bool:
        nonlocal looks
        looks += 1
        return here(looks)

    given = iter(answers)
    return wait_until_idle(lambda: InFlight(next(given)), there, timeout, lambda _: None, sleep=lambda _: None)


def test_when_waiting_ends() -> None:
    idle = wait([3, 0, 1, 0, None, 0, 0])  # a single look at zero is not enough, silence breaks the row
    assert (idle.why, idle.first, idle.left) == ("idle", 3, 0)
    assert wait([3, 2], lambda look: look < 3).why == "ended"
    assert wait([None]).why == "untold"
    late = wait([4, 2], timeout=0.0)
    assert (late.why, late.first, late.left) == ("deadline", 4, 4)
