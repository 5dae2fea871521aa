"""What a log says about a server that did not serve, on what SGLang wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from crossgrade.bench.last_words import telling_line, without_requests

RECORDED = Path(__file__).parent.parent / "data" / "sglang"


@pytest.mark.parametrize(
    ("version", "last"), [("0.5.9", "Received sigquit from a child process"), ("0.5.23", "kill_process_tree called")]
)
def test_a_child_that_failed_is_the_cause(version: str, last: str) -> None:
    lines = (RECORDED / version / "child_failed.log").read_text().splitlines()[-20:]
    assert last in lines[-1]
    assert telling_line(lines) == "ModuleNotFoundError: No module named 'vllm'"


@pytest.mark.parametrize(
    ("lines", "telling"),
    [
        (["server.py: error: unrecognized arguments: --x"], "server.py: error: unrecognized arguments: --x"),
        (["loading", "", "  "], "loading"),
        (["(EngineCore_DP0 pid=7) ERROR 12-02 10:00:00 [core.py:7] torch.OutOfMemoryError: CUDA out of memory.", "bye"],
         "(EngineCore_DP0 pid=7) ERROR 12-02 10:00:00 [core.py:7] torch.OutOfMemoryError: CUDA out of memory."),
        (["    raise ValueError(", "TimeoutError", "done"], "TimeoutError"),
        (["    ValueError: quoted in a source line", "done"], "done"),
        ([], ""),
    ],
)  # fmt: skip
def test_telling_line(lines: list[str], telling: str) -> None:
    assert telling_line(lines) == telling


def test_our_own_questions_are_left_out() -> None:
    asked = '[2026-12-02 18:22:28] INFO:     127.0.0.1:43150 - "GET /health_generate HTTP/1.1" 503 Service Unavailable'
    other = '[2026-12-02 18:22:28] INFO:     127.0.0.1:43126 - "GET /health HTTP/1.1" 503 Service Unavailable'
    assert without_requests(["loading", asked, other, asked], "/health_generate") == ["loading", other]
