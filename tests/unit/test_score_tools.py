"""What evaluation tools print, recorded from the real ones (2026-12-02), and their command lines."""

from __future__ import annotations

import pytest

from crossgrade.bench.given_answers import ToolScore
from crossgrade.bench.score_tools import ToolCall, ToolOutputError, read_tool_output

# python -m sglang.test.few_shot_gsm8k of SGLang 0.5.9; 0.5.23 prints the same lines
FEW_SHOT = """Accuracy: 0.600
Invalid: 0.000
Latency: 0.021 s
Output throughput: 2335.532 token/s
"""
# sgl-eval 0.1.3 run gsm8k --from-dataset ... --num-examples 10
SGL_EVAL = """Run directory: /tmp/acc/ev/out/sgl_eval_gsm8k_20261202-193624
== gsm8k ==
10 examples (single-shot)  |  0.1s  |  383 tok/s  |  50 tokens

* score                =  60.00%
  stop_rate            =  100.00%
  truncated_rate       =  0.00%
  error_rate           =  0.00%
  avg_input_tokens     =  5.0 tokens
  avg_output_tokens    =  5.0 tokens
  avg_thinking_tokens  =  N/A

Metrics: /tmp/acc/ev/out/sgl_eval_gsm8k_20261202-193624/metrics.json
Predictions: /tmp/acc/ev/out/sgl_eval_gsm8k_20261202-193624  (1 jsonl file(s))
"""


def test_few_shot_gsm8k() -> None:
    call = ToolCall("few_shot_gsm8k", "python", questions=10)
    assert read_tool_output(call, FEW_SHOT.splitlines()) == ToolScore("few_shot_gsm8k", 6, 10)
    assert read_tool_output(call, FEW_SHOT.splitlines(), in_file=5) == ToolScore("few_shot_gsm8k", 3, 5)
    line = call.arguments(30001, "/work/x")
    assert line[:5] == ["python", "-m", "sglang.test.few_shot_gsm8k", "--port", "30001"]
    assert "--host" not in line, "the two versions want different ones"


def test_sgl_eval() -> None:
    call = ToolCall("sgl_eval", "/opt/bin/sgl-eval", questions=10, data_file="/data/q.jsonl")
    assert read_tool_output(call, SGL_EVAL.splitlines()) == ToolScore("sgl_eval", 6, 10)
    failing = SGL_EVAL.replace(
        "error_rate           =  0.00%", "error_rate           =  20.00%  [warn: request errors]"
    )
    assert read_tool_output(call, failing.splitlines()).failed == 2
    line = call.arguments(30001, "/work/x")
    assert line[:5] == ["/opt/bin/sgl-eval", "run", "gsm8k", "--base-url", "http://127.0.0.1:30001/v1"]
    assert line[-2:] == ["--from-dataset", "/data/q.jsonl"]


@pytest.mark.parametrize("output", ["", "Traceback\nModuleNotFoundError: No module named 'sglang'", "Accuracy: nan"])
def test_output_without_a_score(output: str) -> None:
    for call in (ToolCall("few_shot_gsm8k", "x"), ToolCall("sgl_eval", "x")):
        with pytest.raises(ToolOutputError, match="printed no score"):
            read_tool_output(call, output.splitlines())


def test_a_score_that_is_no_share() -> None:
    with pytest.raises(ToolOutputError, match=r"a score of 1\.5"):
        read_tool_output(ToolCall("few_shot_gsm8k", "x"), ["Accuracy: 1.500"])
