"""What a server's own argument parser is asked about a launch line.

This file is also run by itself, with the Python of the environment under test (`python -c`): it needs the standard
library only, and Python 3.9. It builds the parser, gives it one group of words after the other, and never makes what
the server makes of the result: no model is looked at, no GPU asked for, nothing started.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import re
import sys
import time
import traceback
import warnings
from typing import Any, NoReturn

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_RETIRED = re.compile(r"\W*(?:deprecated\b|note: \S+ is deprecated)", re.IGNORECASE)


class Refused(Exception):  # noqa: N818 - what argparse says by ending the process
    """The parser does not take the words; the text is its own."""


class _Hearing(logging.Handler):
    """Keeps what is logged, and what is warned of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(_COLOURS.sub("", record.getMessage()))

    def __enter__(self) -> _Hearing:
        self._catching = warnings.catch_warnings()
        self._catching.__enter__()
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_arguments, **_more: self.said.append(str(message))
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger().removeHandler(self)
        self._catching.__exit__(None, None, None)


def tame(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser, which now raises Refused where it would end the process."""

    def error(message: str) -> NoReturn:
        raise Refused(message)

    def leave(status: int = 0, message: str | None = None) -> NoReturn:  # noqa: ARG001 - argparse's own signature
        raise Refused(message or "it would print its help and end")

    parser.error = error  # type: ignore[method-assign]
    parser.exit = leave  # type: ignore[method-assign]
    parser.print_help = lambda file=None: None  # type: ignore[method-assign]  # noqa: ARG005
    return parser


def describe(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """The options of a parser as plain data. `deprecated` is what its help says of that, "" of one that is not."""
    found = []
    for action in parser._actions:
        if not action.option_strings:
            continue
        # a class of its own that warns, or an ordinary option whose help says so
        text = " ".join((action.help or "").split())
        new = getattr(action, "new_flag", None)
        retired = "deprecated" in type(action).__name__.lower() or _RETIRED.match(text)
        choices = None if action.choices is None else sorted(str(choice) for choice in action.choices)
        found.append(
            {
                "names": list(action.option_strings),
                "nargs": "" if action.nargs is None else str(action.nargs),
                "kind": type(action).__name__,
                "type": getattr(action.type, "__name__", "") if action.type is not None else "",
                "choices": choices,
                "required": bool(action.required),
                "deprecated": (text or "use " + str(new)) if retired else "",
            }
        )
    return found


def ask(parser: argparse.ArgumentParser, groups: list[list[str]]) -> list[dict[str, Any]]:
    """What the parser says of each group by itself: an error or None, the words it left over, and its warnings.

    What is required on the whole line is not asked for here.
    """
    required = [action for action in parser._actions if action.required]
    for action in required:
        action.required = False
    found = []
    for words in groups:
        answer: dict[str, Any] = {"error": None, "left_over": [], "said": []}
        with _Hearing() as hearing:
            try:
                answer["left_over"] = list(parser.parse_known_args(list(words))[1])
            except Refused as refused:
                answer["error"] = str(refused)
            except Exception as error:  # noqa: BLE001 - a type's own checks may raise anything; so would the server
                answer["error"] = f"{type(error).__name__}: {error}"
        answer["said"] = hearing.said
        found.append(answer)
    for action in required:
        action.required = True
    return found


def ask_for_all(parser: argparse.ArgumentParser, groups: list[list[str]], answers: list[dict[str, Any]]) -> str | None:
    """What the parser has against the groups together that it takes one by one: something missing, say."""
    words = [word for group, answer in zip(groups, answers) if answer["error"] is None for word in group]  # noqa: B905
    with _Hearing():
        try:
            parser.parse_known_args(words)
        except Refused as refused:
            return str(refused)
        except Exception as error:  # noqa: BLE001
            return f"{type(error).__name__}: {error}"
    return None


def examine(parser: argparse.ArgumentParser, groups: list[list[str]]) -> dict[str, Any]:
    """All that is asked of a parser."""
    tame(parser)
    answers = ask(parser, groups)
    return {"options": describe(parser), "answers": answers, "together": ask_for_all(parser, groups, answers)}


def _merged(parser: argparse.ArgumentParser, mergers: list[str], path: str) -> list[str]:
    """The words that the server makes of its configuration file. Raises whatever it raises."""
    for name in mergers:
        try:
            merger = importlib.import_module(name).ConfigArgumentMerger(parser)
        except ModuleNotFoundError:
            continue
        return list(merger.merge_config_with_args(["--config", path]))
    raise ModuleNotFoundError("it has no reader of configuration files where it used to be")


def _split(words: list[str]) -> list[list[str]]:
    groups: list[list[str]] = []
    for word in words:
        if word[:2] == "--" or not groups:
            groups.append([])
        groups[-1].append(word)
    return groups


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Import the parser's module and ask it. Raises what the import raises."""
    began = time.perf_counter()
    with _Hearing() as hearing:
        module = importlib.import_module(question["module"])
        parser = tame(argparse.ArgumentParser(prog=question["prog"]))
        getattr(getattr(module, question["owner"]), question["method"])(parser)
    groups = list(question["groups"])
    found: dict[str, Any] = {"file_error": None, "file_groups": []}
    if question["file"]:
        try:
            found["file_groups"] = _split(_merged(parser, question["mergers"], question["file"]))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the server's own code
            found["file_error"] = f"{type(error).__name__}: {error}"
    found.update(examine(parser, found["file_groups"] + groups))
    return {**found, "said": hearing.said, "seconds": time.perf_counter() - began}


def main() -> None:
    """Answer the question of standard input, in one line of standard error that begins with the word of argv[1]."""
    sys.path[:] = [entry for entry in sys.path if entry]  # the current directory is no part of the environment
    word = sys.argv[1]
    del sys.argv[1:]
    question = json.loads(sys.stdin.read())
    try:
        found = answer(question)
    except BaseException as error:  # noqa: BLE001 - also what ends a process: it is reported
        lines = "".join(traceback.format_exception_only(type(error), error)).rstrip().splitlines()
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        found = {"exception": type(error).__name__, "last_line": lines[-1], "traceback": trace[-4000:]}
    sys.stderr.write("\n" + word + json.dumps(found) + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
