"""Results found in answers, by the documented rules."""

from __future__ import annotations

import json

import pytest

from crossgrade.errors import TaskError
from crossgrade.gates.task_score import Question, is_right, read_questions, word_prompts

GSM8K = {
    "question": "Natalia sold clips to 48 of her friends in April, then half as many in May. How many?",
    "answer": "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nNatalia sold 48+24 = <<48+24=72>>72 clips.\n#### 72",
}


def expected(answer: object) -> str:
    return read_questions(json.dumps({"question": "?", "answer": answer}), "q")[0].expected


def test_what_is_expected() -> None:
    assert expected(GSM8K["answer"]) == "72"
    assert expected("Long.\n#### 1,234.50") == "1,234.50"
    assert expected("#### $18") == "18"
    assert expected(72) == "72"
    assert expected("B") == "B"
    assert expected("The Apollo 11 crew.\n#### Apollo 11") == "Apollo 11"
    assert expected("So $x = \\boxed{-3}$.") == "-3"
    assert read_questions(json.dumps({"problem": "?", "expected_answer": 5}), "q")[0].expected == "5"


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (" She sold 48 + 24 = 72.\n#### 72", True),
        ("#### 72.00", True),
        ("The answer is 72.", True),
        ("The answer is: **72**", True),
        ("So in total she sold $72 of clips", True),
        ("Therefore \\boxed{72}. I checked it 3 times", True),
        ("The answer is 72 clips. In May alone: 24", True),
        ("#### 24", False),
        ("It is 72, no, 24", False),
        ("172", False),
        ("7.2", False),
        ("-72", False),
        ("", False),
        ("I do not know", False),
    ],
)
def test_numbers(answer: str, right: bool) -> None:
    assert is_right(Question("?", "", "72"), answer) is right


@pytest.mark.parametrize(
    ("result", "answer", "right"),
    [
        ("1,000", "It is 1000", True),
        ("1000", "#### 1,000", True),
        ("0.5", "The answer is .5", True),
        ("-3", "x = \u22123", True),
        ("B", "The answer is (B).", True),
        ("B", "I think that it is B", True),
        ("B", "A is wrong, so B. But C", False),
        ("Paris", "The capital is\n paris. ", True),
        ("Paris", "", False),
    ],
)
def test_other_results(result: str, answer: str, right: bool) -> None:
    assert is_right(Question("?", "", result), answer) is right


def test_prompts() -> None:
    questions = read_questions("\n".join(json.dumps(GSM8K | {"question": f"Q{n}?"}) for n in range(4)) + "\n\n", "q")
    first, second = word_prompts(questions, 2, chat=False)
    assert first.endswith("#### 72\n\nQuestion: Q2?\nAnswer:")
    assert first.count("Question:") == 3
    assert second.endswith("Question: Q3?\nAnswer:")
    assert "####" in word_prompts(questions, 0, chat=True)[0]
    with pytest.raises(TaskError, match="4 examples leave none of 4 questions"):
        word_prompts(questions, 4, chat=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no question"),
        ('{"question": "?"}', "q:1: a question needs"),
        ('{"question": "?", "answer": "1"}\nbroken', "q:2: "),
        ('{"question": "?", "answer": true}', "q:1: a question needs"),
        ('{"question": "?", "answer": "####"}', "q:1: its answer has no result"),
        ("[1]", "q:1: a question needs"),
    ],
)
def test_files_that_cannot_be_used(text: str, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        read_questions(text, "q")
