r"""Questions with a known result, asked as a task: reading them, wording prompts, finding the result in answers. Pure.

A file has one JSON object in each line with `question` and `answer`, as GSM8K's (grade-school-math) files have;
`problem` and `expected_answer` (as in NeMo-Skills and sgl-eval) are taken too. The result is found by these rules, in
both the expected and the given answer, the first that fits:

1. What follows the last `####` on its line (GSM8K's own mark).
2. What the last `\boxed{...}` holds.
3. What follows the last `answer is` or `answer:`, up to the end of the sentence.
4. In a given answer, where the expected result is a number: the last number of the text; where it is one capital
   letter (a choice): the last such letter that stands alone. Else the last line that is not empty.

Where a number is expected, the first number of what was found counts: without thousands separators, currency and per
cent signs; 12, 12.0 and 12.00 are the same. Other texts are compared without case, marks around them and white space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from crossgrade.errors import TaskError

STOP = ("Question:", "\nQ:")  # a base model goes on with questions of its own
CHAT_HINT = "Work it out step by step, and end with a line: #### and the result alone."

_NUMBER = re.compile(r"[-\u2212]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|[-\u2212]?\.\d+")
_MARKED = re.compile(r"####[ \t]*([^\n]*)")
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_SAID = re.compile(r"answer\s*(?:is\s*:?|:)\s*([^\n]*?)(?:\.\s|\.$|\n|$)", re.IGNORECASE)
_LETTER = re.compile(r"\b[A-Z]\b")


@dataclass(frozen=True)
class Question:
    """A question, the whole answer as the file has it (for examples), and the result that is right."""

    text: str
    worked: str
    expected: str


def read_questions(text: str, where: str) -> tuple[Question, ...]:
    """The questions of a file. Raises TaskError, with the line, for what has none or no result."""
    questions = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TaskError(f"{where}:{number}: {error}", remedy="One JSON object in each line.") from error
        item = item if isinstance(item, dict) else {}
        asked = item.get("question", item.get("problem"))
        answer = item.get("answer", item.get("expected_answer"))
        if not isinstance(asked, str) or isinstance(answer, bool) or not isinstance(answer, str | int | float):
            raise TaskError(
                f"{where}:{number}: a question needs `question` and `answer`", remedy="As in GSM8K's test.jsonl."
            )
        result = _result(str(answer), number=False)
        expected = bare if _NUMBER.fullmatch(bare := result.strip(" $€£%.")) else result
        if not expected:
            raise TaskError(f"{where}:{number}: its answer has no result")
        questions.append(Question(asked, str(answer), expected))
    if not questions:
        raise TaskError(f"{where} holds no question")
    return tuple(questions)


def word_prompts(questions: Sequence[Question], shots: int, *, chat: bool) -> tuple[str, ...]:
    """The prompt of each question. The first `shots` questions are examples and are not asked. Raises TaskError."""
    if not 0 <= shots < len(questions):
        raise TaskError(f"{shots} examples leave none of {len(questions)} questions to ask")
    examples = "".join(f"Question: {one.text}\nAnswer: {one.worked}\n\n" for one in questions[:shots])
    hint = f"{CHAT_HINT}\n\n" if chat and not shots else ""
    return tuple(f"{examples}{hint}Question: {one.text}\nAnswer:" for one in questions[shots:])


def is_right(question: Question, answer: str) -> bool:
    """Whether the answer comes to the result that is expected."""
    number = _number(question.expected)
    if number is not None:
        return _number(_result(answer, number=True)) == number
    return bool(answer.strip()) and _plain(
        _result(answer, number=False, letter=_is_letter(question.expected))
    ) == _plain(question.expected)


def _result(text: str, *, number: bool, letter: bool = False) -> str:
    """What a text comes to, "" where it has nothing of the kind."""
    for pattern in (_MARKED, _BOXED, _SAID):
        if found := pattern.findall(text):
            if not number:
                return _last_letter(found[-1]) if letter else found[-1].strip()
            if numbers := _NUMBER.findall(found[-1]):
                return str(numbers[0])
    if number:
        numbers = _NUMBER.findall(text)
        return str(numbers[-1]) if numbers else ""
    if letter:
        return _last_letter(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _last_letter(text: str) -> str:
    letters = _LETTER.findall(text)
    return letters[-1] if letters else ""


def _is_letter(text: str) -> bool:
    return len(_plain(text)) == 1 and text.strip().strip("().").isupper()


def _number(text: str) -> Decimal | None:
    if not _NUMBER.fullmatch(text):
        return None
    try:
        return Decimal(text.replace(",", "").replace("\u2212", "-"))
    except InvalidOperation:
        return None


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().strip("().,:;!?*\"'` ").casefold()
