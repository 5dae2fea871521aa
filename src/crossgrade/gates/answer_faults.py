"""What is wrong with a single answer, whatever the right one would be: numbers that are none, loops, garbage. Pure.

The rules, each meant to spare innocent text (tables, code, lists):

* `error`: the request failed. `aborted`: the server gave up (`finish_reason` abort or error).
* `empty`: no text but white space.
* `not_finite`: a token has no finite log-probability (NaN becomes null in JSON), or one above zero; or at least half of
  the words are `nan`, `inf` or `null`.
* `garbage`: replacement characters (U+FFFD), control characters and code points that mean nothing, at least two and at
  least 2% of the text. Up to three U+FFFD at the very end are half a character that the length limit cut off.
* `loop`: the end of the answer repeats one unit, word for word, up to the place where the length limit cut it. An
  answer that its model ended is none. Words, single marks and runs of one mark count as units of a text; the repeated
  part is at least 24 of them long and holds the unit at least 6 times, or at least 3 times where it is 8 or longer. A
  unit without a letter (`| --- |`, `0, 0, `) must make up half of the answer. A run of one mark of 24 characters is one
  where it makes up two thirds (`!!!!`, which is what token 0 looks like in many vocabularies: logits that are NaN lead
  to it, vllm issue 13035).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from crossgrade.bench.given_answers import Answer

FaultKind = Literal["error", "aborted", "empty", "not_finite", "garbage", "loop"]

WORDS: Mapping[FaultKind, str] = {
    "error": "failed",
    "aborted": "was aborted by the server",
    "empty": "is empty",
    "not_finite": "has numbers that are none",
    "garbage": "has characters that mean nothing",
    "loop": "repeats itself without end",
}

ABORTED = ("abort", "error")
ENDED = ("stop", "eos", "tool_calls", "function_call", "content_filter")  # the model ended it, or was made to
LEAST_UNITS = 24  # of a loop
LEAST_CHARACTERS = 24  # of a run of one mark
LONGEST_PERIOD = 200  # units: a paragraph
LONG_UNIT = 8
LEAST_TIMES, LEAST_TIMES_LONG = 6, 3
CUT_CHARACTER = 3  # bytes of a character that were still to come, each shown as one U+FFFD
GARBAGE_SHARE = 0.02
ABOVE_ZERO = 0.01  # a log-probability may be rounded

# Letters of scripts without spaces are units of their own.
_UNITS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+|([^\w\s])\1*")
_LETTER = re.compile(r"[^\W\d_]")
_NO_NUMBER = re.compile(r"[-+]?(?:nan|inf|infinity|null)", re.IGNORECASE)


@dataclass(frozen=True)
class Fault:
    """What is wrong, and a few words of evidence; no more of the answer than 80 characters."""

    kind: FaultKind
    detail: str


def fault_of(answer: Answer) -> Fault | None:
    """The worst that is wrong with an answer, None when nothing is."""
    if answer.error:
        return Fault("error", answer.error)
    if answer.finish_reason in ABORTED:
        return Fault("aborted", f"finish_reason {answer.finish_reason}")
    if not_finite := _not_finite(answer):
        return Fault("not_finite", not_finite)
    if not answer.text.strip():
        return Fault("empty", f"no text, finish_reason {answer.finish_reason or 'not told'}")
    if garbage := _garbage(answer.text):
        return Fault("garbage", garbage)
    if answer.finish_reason not in ENDED and (loop := find_loop(answer.text)):
        return Fault("loop", loop)
    return None


def _not_finite(answer: Answer) -> str:
    for place, token in enumerate(answer.tokens):
        if token.logprob is None:
            return f"token {place} has no finite log-probability"
        if token.logprob > ABOVE_ZERO:
            return f"token {place} has a log-probability of {token.logprob:.3g}, above zero"
    words = answer.text.replace(",", " ").split()
    none = sum(_NO_NUMBER.fullmatch(word.strip("[](){}.;:")) is not None for word in words)
    if not words or 2 * none < len(words):
        return ""
    return f"{none} of {len(words)} words are no numbers: {shown(answer.text, 40)}"


def _garbage(text: str) -> str:
    body = text
    for _ in range(CUT_CHARACTER):
        body = body.removesuffix("\ufffd")
    odd = [character for character in body if _means_nothing(character)]
    if len(odd) < 2 or len(odd) < GARBAGE_SHARE * len(body):
        return ""
    codes = ", ".join(f"U+{ord(character):04X}" for character in sorted(set(odd))[:3])
    return f"{len(odd)} of {len(body)} characters: {codes}"


def _means_nothing(character: str) -> bool:
    if character in "\t\n\r\f":
        return False
    return character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cn", "Co", "Cs")


def find_loop(text: str) -> str:
    """What the end of a text repeats, and how often, in words; "" where it repeats nothing. See the rule above."""
    stripped = text.rstrip()
    if run := _run_of_one_mark(stripped):
        return run
    units = [(match.start(), match[0]) for match in _UNITS.finditer(stripped)]
    return _repeated(stripped, units) or _repeated(stripped, units[:-1])  # the limit may have cut the last word


def _repeated(text: str, units: Sequence[tuple[int, str]]) -> str:
    words = [unit for _, unit in units]
    for period in range(1, min(LONGEST_PERIOD, len(words) // LEAST_TIMES_LONG) + 1):
        length = period
        while length < len(words) and words[-length - 1] == words[-length - 1 + period]:
            length += 1
        times = length // period
        if length < LEAST_UNITS or times < (LEAST_TIMES_LONG if period >= LONG_UNIT else LEAST_TIMES):
            continue
        start = units[-length][0]
        if not _LETTER.search(text[start:]) and 2 * (len(text) - start) < len(text):
            continue
        return f"{shown(text[units[-period][0] :], 60)} {times} times at the end"
    return ""


def _run_of_one_mark(text: str) -> str:
    if not text or text[-1].isalnum():
        return ""
    # spaces between the marks change nothing: "! ! ! !"
    marks = "".join(text.split())
    length = len(marks) - len(marks.rstrip(marks[-1]))
    if length < LEAST_CHARACTERS or 3 * length < 2 * len(marks):
        return ""
    return f"{marks[-1]!r} {length} times at the end"


def shown(text: str, characters: int) -> str:
    """The beginning of a text as one line in quotation marks, whatever is in it."""
    short = text if len(text) <= characters else text[: characters - 1] + "…"
    return repr(short)
