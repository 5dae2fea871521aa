"""Evaluation tools that ask a server for themselves: how they are started, and what they print. Pure.

* `few_shot_gsm8k`: `python -m sglang.test.few_shot_gsm8k`, which SGLang 0.5.9 and 0.5.23 bring (the later one calls
  it deprecated). The server's host is left out of its command line: the earlier one wants `http://127.0.0.1`, the
  later one `127.0.0.1`, and that is what both take without one. Its examples are the first of the questions that it
  asks.
* `sgl_eval`: `sgl-eval run gsm8k`, a package of its own (sgl-eval 0.1.3), which SGLang 0.5.23 points to.

Both print shares of rounded digits, from which the number of right answers follows while there are not too many
questions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from crossgrade.bench.given_answers import ToolScore

Tool = Literal["few_shot_gsm8k", "sgl_eval"]

MOST_QUESTIONS = 5000  # three digits of a share, from which a number is found again up to a few answers
GSM8K_QUESTIONS = 1319  # of the test file that few_shot_gsm8k downloads when it is given none


class ToolOutputError(ValueError):
    """A tool printed no score."""


@dataclass(frozen=True)
class ToolCall:
    """How a tool is asked. `program` is the interpreter for `few_shot_gsm8k`, the program itself for `sgl_eval`.

    `data_file` "" lets the tool bring or download its own questions.
    """

    tool: Tool
    program: str
    questions: int = 200
    shots: int = 5
    parallel: int = 32
    max_tokens: int = 512
    data_file: str = ""

    def arguments(self, port: int, folder: str) -> list[str]:
        """The command line for the server on 127.0.0.1 at this port. `folder` is where the tool may write."""
        if self.tool == "few_shot_gsm8k":
            return [
                *(self.program, "-m", "sglang.test.few_shot_gsm8k", "--port", str(port)),
                *("--num-questions", str(self.questions), "--num-shots", str(self.shots)),
                *("--parallel", str(self.parallel), "--max-new-tokens", str(self.max_tokens), "--temperature", "0"),
                *(("--data-path", self.data_file) if self.data_file else ()),
            ]
        return [
            *(self.program, "run", "gsm8k", "--base-url", f"http://127.0.0.1:{port}/v1", "--out-dir", folder),
            *("--num-examples", str(self.questions), "--num-threads", str(self.parallel)),
            *("--max-tokens", str(self.max_tokens), "--temperature", "0", "--n-repeats", "1"),
            *(("--from-dataset", self.data_file) if self.data_file else ()),
        ]


def read_tool_output(call: ToolCall, lines: Sequence[str], in_file: int = GSM8K_QUESTIONS) -> ToolScore:
    """What a tool's output says. `in_file` is how many questions its file has. Raises ToolOutputError."""
    text = "\n".join(lines)
    if call.tool == "few_shot_gsm8k":
        asked = min(call.questions, in_file)
        return _score(call.tool, _number(r"^Accuracy: ([\d.]+)$", text), asked, 0.0)
    examples = int(_number(r"^(\d+) examples \(single-shot\)", text))
    failed = re.search(r"^\s*error_rate\s*=\s*([\d.]+)%", text, re.MULTILINE)
    share = _number(r"^\*\s*score\s*=\s*([\d.]+)%", text) / 100
    return _score(call.tool, share, examples, float(failed[1]) / 100 if failed else 0.0)


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "nothing")
        raise ToolOutputError(f"it printed no score; its last line: {last.strip()[:200]}")
    return float(found[1])


def _score(tool: str, share: float, asked: int, failed: float) -> ToolScore:
    if not 0.0 <= share <= 1.0 or asked < 1:
        raise ToolOutputError(f"it printed a score of {share:g} over {asked} questions")
    return ToolScore(tool, round(share * asked), asked, round(failed * asked))
