"""Prompts from a file: ShareGPT-like JSON, JSON lines, or one text in each line. What is hostile is refused.

Read in pieces, so that of a file of many gigabytes only as much is read as is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON

MOST_PROMPTS = 10_000  # the first of a file; the rest is not read
MOST_BYTES = 64 << 20  # of their texts together
LARGEST_ITEM = 8 << 20  # characters of one JSON item or one line
PIECE = 1 << 20  # characters
WHITESPACE = " \t\r\n"


class PromptFileError(TaskError, ValueError):
    """A file of prompts that cannot be used."""


@dataclass(frozen=True)
class Prompt:
    """A text, and how long its answer is to be in tokens (None: as the profile says)."""

    text: str
    output_tokens: int | None = None


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a file, in its order. `digest` is the SHA-256 of what was taken from it, in hexadecimal."""

    path: str
    prompts: tuple[Prompt, ...]
    digest: str

    def to_json(self) -> dict[str, JSON]:
        """Not the texts: they may be many, and private."""
        return {"path": self.path, "prompts": len(self.prompts), "sha256": self.digest}


def read_prompt_set(path: Path, most: int = MOST_PROMPTS) -> PromptSet:
    """The first `most` prompts of a file, by its first character: `[` JSON array, `{` JSON lines, else texts.

    An item of JSON has `prompt` or `text`, or `messages` or `conversations` (ShareGPT: its first turn of the user is
    taken), and perhaps `output_tokens`, `max_tokens` or `output_length`. An item of another kind is an error, one
    without a text is passed over. Raises PromptFileError.
    """
    prompts: list[Prompt] = []
    size = 0
    digest = hashlib.sha256()
    try:
        with path.open(encoding="utf-8-sig") as file:
            for prompt in _prompts(file, path):
                size += len(prompt.text.encode("utf-8", "surrogatepass"))
                if size > MOST_BYTES:
                    raise PromptFileError(f"{path}: the first {most} prompts are more than {MOST_BYTES >> 20} MiB")
                prompts.append(prompt)
                digest.update(f"{prompt.output_tokens} {prompt.text!r}\n".encode())
                if len(prompts) == most:
                    break
    except OSError as error:
        raise PromptFileError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise PromptFileError(f"{path} is not UTF-8: {error.reason} near byte {error.start} of a piece") from error
    if not prompts:
        raise PromptFileError(f"{path} holds no prompt")
    return PromptSet(str(path), tuple(prompts), digest.hexdigest())


def _prompts(file: IO[str], path: Path) -> Iterator[Prompt]:
    begin = _first_character(file, path)
    if begin == "[":
        for number, item in enumerate(_array_items(file, path)):
            yield from _prompt_of(item, f"{path}, item {number}")
        return
    for number, line in _lines(file, path):
        if not line.strip():
            continue
        if begin == "{":
            yield from _prompt_of(_parsed(line, f"{path}:{number}"), f"{path}:{number}")
        else:
            yield Prompt(line)


def _first_character(file: IO[str], path: Path) -> str:
    """The first that is not white space; the file is put back to its beginning."""
    text = file.read(PIECE)
    file.seek(0)
    begin = text.lstrip()[:1]
    if text and not begin:
        raise PromptFileError(f"{path} begins with {len(text)} characters of white space")
    return begin


def _lines(file: IO[str], path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    while line := file.readline(LARGEST_ITEM + 1):
        number += 1
        if len(line) > LARGEST_ITEM:
            raise PromptFileError(f"{path}:{number}: a line longer than {LARGEST_ITEM} characters")
        yield number, line.rstrip("\r\n")


def _array_items(file: IO[str], path: Path) -> Iterator[object]:
    """The items of one JSON array, each as soon as it is read whole."""
    decoder = json.JSONDecoder()
    text = ""
    at = 0
    count = 0
    ended = False
    expect_separator = False

    def more() -> bool:
        nonlocal text, at, ended
        if len(text) - at > LARGEST_ITEM:
            raise PromptFileError(f"{path}, item {count}: longer than {LARGEST_ITEM} characters")
        piece = file.read(PIECE)
        ended = not piece
        text = text[at:] + piece
        at = 0
        return not ended

    def next_character() -> str:
        nonlocal at
        while True:
            while at < len(text) and text[at] in WHITESPACE:
                at += 1
            if at < len(text):
                return text[at]
            if not more():
                raise PromptFileError(f"{path} ends after item {count}, without `]`")

    next_character()
    at += 1  # the `[`
    while True:
        character = next_character()
        if character == "]":
            return
        if expect_separator:
            if character != ",":
                raise PromptFileError(f"{path}: after item {count - 1} stands {character!r}, not `,` or `]`")
            at += 1
            next_character()
        # An item that is cut by the piece's end cannot be told from a broken one: more is read until it is whole. The
        # pieces grow with it, so that this takes no more than a few times the time of reading it once.
        while True:
            try:
                item, end = decoder.raw_decode(text, at)
            except RecursionError:
                raise PromptFileError(f"{path}, item {count}: nested too deeply") from None
            except ValueError as error:
                if not _double(more, len(text) - at):
                    raise PromptFileError(f"{path}, item {count}: {error}") from None
                continue
            if end == len(text) and not ended and more():
                continue  # a number may go on
            at = end
            break
        yield item
        count += 1
        expect_separator = True


def _double(more: Any, pending: int) -> bool:
    """Read until there is about twice as much; False when nothing more came."""
    came = False
    for _ in range(max(1, pending // PIECE)):
        if not more():
            break
        came = True
    return came


def _parsed(line: str, place: str) -> object:
    try:
        return json.loads(line)
    except RecursionError:
        raise PromptFileError(f"{place}: nested too deeply") from None
    except ValueError as error:
        raise PromptFileError(f"{place}: {error}") from None


def _prompt_of(item: object, place: str) -> Iterator[Prompt]:
    if isinstance(item, str):
        if item.strip():
            yield Prompt(item)
        return
    if not isinstance(item, Mapping):
        raise PromptFileError(f"{place}: an item is a text or an object, not {type(item).__name__}")
    text = _text_of(item, place)
    if text.strip():
        yield Prompt(text, _tokens_of(item, place))


def _text_of(item: Mapping[str, Any], place: str) -> str:
    for name in ("prompt", "text"):
        if name in item:
            if isinstance(item[name], str):
                return str(item[name])
            raise PromptFileError(f"{place}: `{name}` is no text")
    for name, speaker, said, users in (
        ("messages", "role", "content", ("user",)),
        ("conversations", "from", "value", ("human", "user")),
        ("conversation", "role", "content", ("user",)),
    ):
        if name not in item:
            continue
        turns = item[name]
        if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
            raise PromptFileError(f"{place}: `{name}` is no list of turns")
        for turn in turns:
            if turn.get(speaker) in users and isinstance(turn.get(said), str):
                return str(turn[said])
        return ""  # a conversation without the user
    raise PromptFileError(f"{place}: it has no prompt, text, messages or conversations, but {', '.join(item)[:80]}")


def _tokens_of(item: Mapping[str, Any], place: str) -> int | None:
    for name in ("output_tokens", "max_tokens", "output_length"):
        value = item.get(name)
        if value is None:
            continue
        if type(value) is not int or not 1 <= value <= 1 << 20:
            raise PromptFileError(f"{place}: `{name}` is {str(value)[:40]}, no number of tokens")
        return value
    return None
