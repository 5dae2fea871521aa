"""What is wrong with an answer by itself: loops and garbage as real servers give them, and innocent texts like them."""

from __future__ import annotations

from typing import Any

import pytest

from crossgrade.bench.given_answers import Answer, Token
from crossgrade.gates.answer_faults import fault_of, find_loop


def kind(text: str, finish_reason: str = "length", **more: Any) -> str:
    fault = fault_of(Answer(text, finish_reason, **more))
    return fault.kind if fault else ""


PARAGRAPH = "The council met on Monday to discuss the bridge, and after three hours it agreed to build it. "

LOOPS = {
    "one word": "I think that the the the the the" + " the" * 30,
    "marks of token 0": "!" * 64,
    "marks after a beginning": "The answer is" + "!" * 50,
    "marks apart": "! " * 40,
    "a phrase": "Sure! Here is the list." + " and then the next one" * 8,
    "a phrase, cut in a word": "Sure! Here is the list." + " and then the next one" * 8 + " and th",
    "a sentence": "Well. " + PARAGRAPH * 3,
    "a sentence of one reasoning step": "Let me think." + " Wait, let me reconsider the problem again." * 6,
    "a line of code": "def f():\n" + "    x = x + 1\n" * 12,
    "a list with one item": "Things to pack:\n" + "- a warm jacket\n" * 9,
    "rows without content": "| a |\n" + "| | | |\n" * 30,
    "zeros": "[" + "0, " * 60,
    "Chinese": "好的。" + "我们可以看到" * 8,
    "numbers after a comma": "0." + "3" * 5 + " 33" * 40,
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops(name: str) -> None:
    assert kind(LOOPS[name]) == "loop"
    assert len(find_loop(LOOPS[name])) <= 90
    assert kind(LOOPS[name], "") == "loop", "a server that does not say why it ended"
    assert kind(LOOPS[name], "stop") == "", "what its model ended is no loop without end"


INNOCENT = {
    "a table": (
        "| Fruit | Hue | Taste |\n|-------|--------|-------|\n| Apple | red | sweet |\n| Kiwi | green | sour |\n"
    ),
    "a table cut in its rule": (
        "Here is a table of six columns:\n\n| one | two | three | four | five | six |\n|---|---|---|---|"
    ),
    "a rule": "Results of the measurements on Monday\n" + "-" * 36,
    "a comment line in code": "import os\n\n# settings of the server, in the order of the file\n# " + "=" * 40,
    "a matrix": "The identity matrix of size four is\n[[1, 0, 0, 0],\n [0, 1, 0, 0],\n [0, 0, 1, 0],\n [0, 0, 0, 1]]",
    "initialized memory": (
        "The buffer is declared like this and then filled by the caller:\nint a[16] = {0, 0, 0, 0, 0, 0, 0, 0,"
    ),
    "closing braces": "function f() {\n  if (a) {\n    if (b) {\n      g();\n    }\n  }\n}\n}\n}\n",
    "html": "<table>\n<tr><th>A</th></tr>\n<tr><td></td><td></td><td></td><td></td></tr>",
    "a list": "\n".join(f"{n}. Take item {n} out of the box." for n in range(1, 12)),
    "numbers in order": ", ".join(str(n) for n in range(1, 60)),
    "steps": "\n".join(f"Step {n}: add {n} and {n + 1} to get {2 * n + 1}." for n in range(1, 9)),
    "multiplication": "\n".join(f"7 x {n} = {7 * n}" for n in range(1, 13)),
    "CSV": "name,age,city\n" + "\n".join(f"Person {n},{20 + n},Town" for n in range(12)),
    "a refrain": (
        "Row, row, row your boat, gently down the stream. Merrily, merrily, merrily, merrily, life is but a dream."
    ),
    "laughter": "That is funny, ha ha ha ha ha! Tell me another one",
    "dots": "The chapters are: Introduction .......... 3, Methods .......... 7, Results ..........",
    "a sentence said twice": "She said: " + PARAGRAPH * 2,
    "an imported list": (
        "import os\nimport sys\nimport json\nimport re\nimport time\nimport math\nimport random\nimport string"
    ),
    "assertions": "\n".join(f"assert f({n}) == {n * n}" for n in range(12)),
}


@pytest.mark.parametrize("name", INNOCENT)
def test_innocent_texts(name: str) -> None:
    assert kind(INNOCENT[name]) == ""


@pytest.mark.parametrize("text", ["nan nan nan nan", "NaN", "[nan, nan, 1.0]", "null null, inf"])
def test_text_of_numbers_that_are_none(text: str) -> None:
    assert kind(text, "stop") == "not_finite"


@pytest.mark.parametrize(
    "text", ["In JavaScript 0/0 is NaN, and NaN is not equal to itself.", "Nan went to the infirmary."]
)
def test_text_about_them(text: str) -> None:
    assert kind(text, "stop") == ""


def test_log_probabilities_that_are_none() -> None:
    good = Token("a", -0.5)
    assert kind("a b", tokens=(good, good)) == ""
    assert kind("a b", tokens=(good, Token("b", None))) == "not_finite"
    assert kind("a b", tokens=(good, Token("b", 0.4))) == "not_finite"
    assert kind("a b", tokens=(good, Token("b", 1e-6))) == "", "a certain token, rounded"


def test_garbage() -> None:
    assert kind("\ufffd\ufffd a \ufffd b \ufffd") == "garbage"
    assert kind("fine \x00\x01 text") == "garbage"
    assert kind("\ue000\ue001\ue002") == "garbage"
    assert kind("The word is caf\ufffd") == "", "the limit cut a character in half"
    assert kind("Emoji: 👩\u200d👩\u200d👧 and ゼロ and \u00a0spaces\tand\nlines") == ""


def test_the_rest() -> None:
    assert kind("") == "empty"
    assert kind(" \n ") == "empty"
    assert kind("fine", "abort") == "aborted"
    assert kind("", error="http_status: 500: out of memory") == "error"
    assert kind("fine", "stop") == ""


def test_a_long_answer_takes_no_time_to_speak_of() -> None:
    """200,000 characters without a loop: the work grows with the length, not with its square."""
    assert find_loop(" ".join(f"word{n}" for n in range(20_000))) == ""
