"""The verdict against real servers that are slower by a known share; `bench verdicts` prints the table."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from crossgrade.bench import planted_server
from crossgrade.bench.verdict_proof import (
    ALLOWED,
    CASES,
    Planted,
    Repetition,
    proof_table,
    prove,
    read_repetitions,
    repeat,
)

TIMES = 10


def test_a_server_that_is_far_slower_does_not_pass(tmp_path: Path) -> None:
    """Only with eight streams, which the load with one cannot see."""
    found = repeat(Planted("concurrency-8", 0.5), tmp_path)
    assert found.outcome != "passed"
    assert found.pairs >= 3
    assert max(found.measured.values()) == pytest.approx(0.5, abs=0.3)


def test_what_is_planted_is_the_loss_asked_for() -> None:
    def speed(kind: str, loss: float, streams: int) -> float:
        planted = planted_server.Planted(kind, loss)
        planted.streams = streams
        return 1000 / sum(sum(planted.waits(24)) for _ in range(1000))

    for kind, streams in (("constant", 1), ("bursty", 1), ("concurrency-8", 8)):
        lost = 1 - speed(kind, 0.1, streams) / speed(kind, 0.0, streams)
        assert lost == pytest.approx(0.1, abs=0.01), kind
    assert speed("concurrency-8", 0.1, 1) == speed("concurrency-8", 0.0, 1)
    assert planted_server.Planted("first-token", 0.1).first() == pytest.approx(planted_server.FIRST_SECONDS / 0.9)
    assert planted_server.Planted("bursty", 0.1).first() == planted_server.FIRST_SECONDS


def test_the_table_counts_what_was_right(tmp_path: Path) -> None:
    outcomes = {
        (0.02, "passed"): "right",
        (0.02, "failed"): "wrong",
        (0.05, "passed"): "wrong",
        (0.1, "passed"): "wrong",
        (0.1, "failed"): "right",
        (0.1, "inconclusive"): "inconclusive",
        (0.1, "void"): "void",
    }
    repetitions = [Repetition("bursty", loss, outcome, 3) for loss, outcome in outcomes]  # type: ignore[arg-type]
    assert [one.judged for one in repetitions] == list(outcomes.values())
    record = tmp_path / "record.jsonl"
    record.write_text("".join(json.dumps(vars(one)) + "\n" for one in repetitions) + '{"kind": "burs')
    assert read_repetitions(record) == repetitions
    rows = proof_table(repetitions)
    assert rows[1] == ("bursty", "2%", "passed", "1", "1", "0", "0", "2", "3.0", "?")
    assert rows[3][3:8] == ("1", "1", "1", "1", "4")


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_wrong_passes_are_as_rare_as_stated(tmp_path: Path) -> None:
    """Over all cases with too great a loss: at most 5%, with the room of a count so small."""
    found = prove(TIMES, tmp_path, None, lambda _: None)
    too_slow = [one for one in found if one.loss >= ALLOWED and one.outcome != "void"]
    assert len(too_slow) >= TIMES * len(CASES) / 3, "too much was void to say anything"
    passed = sum(one.outcome == "passed" for one in too_slow)
    assert passed / len(too_slow) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / len(too_slow))
    far_slower = [one for one in too_slow if one.loss > ALLOWED]
    assert any(one.outcome == "failed" for one in far_slower)
    assert any(one.outcome == "passed" for one in found if one.loss < ALLOWED)
