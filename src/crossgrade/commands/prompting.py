"""`vars_prompt`: asking the person at the terminal, before anything is planned."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from crossgrade.engine.prepare import Prepared
from crossgrade.errors import CrossgradeError, Place
from crossgrade.playbook.model import Play, Prompt


def with_answers(prepared: Prepared) -> Prepared:
    """The same with an answer to every question of its plays. Variables of -e are not asked for.

    Without a terminal the default is the answer. Raises CrossgradeError where there is none.
    """
    answers = {play.uid: answered for play, _ in prepared.plays if (answered := _of_play(prepared, play))}
    return replace(prepared, request=replace(prepared.request, answers=answers)) if answers else prepared


def _of_play(prepared: Prepared, play: Play) -> Mapping[str, Any]:
    given = prepared.request.extra_vars
    asked = play.spot_of("vars_prompt")
    return {
        prompt.name: _answer(prompt, asked.at(at).place)
        for at, prompt in enumerate(play.prompts)
        if prompt.name not in given
    }


def _answer(prompt: Prompt, place: Place | None) -> Any:
    if not sys.stdin.isatty():
        if prompt.default is not None:
            return prompt.default
        raise CrossgradeError(
            f"nobody can be asked for {prompt.name!r}: there is no terminal, and the question has no default",
            remedy=f"Give it with -e {prompt.name}=…, or in a file: -e @FILE.",
            place=place,
        )
    while True:
        answer = _ask(prompt, prompt.text)
        if not prompt.confirm or answer == _ask(prompt, f"confirm {prompt.text}"):
            return prompt.default if not answer and prompt.default is not None else answer
        sys.stderr.write("The two answers differ.\n")


def _ask(prompt: Prompt, text: str) -> str:
    default = "" if prompt.default is None else f" [{prompt.default}]"
    question = text if text.rstrip().endswith((":", "?")) and not default else f"{text.rstrip(': ')}{default}: "
    if prompt.private:
        return getpass.getpass(question, stream=sys.stderr)
    sys.stderr.write(question)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise CrossgradeError(f"there was no answer to {text!r}", remedy=f"Give it with -e {prompt.name}=…")
    return line.rstrip("\n")
