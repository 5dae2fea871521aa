"""`explain`: what a pasted output or a log file says went wrong, and what to do about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from crossgrade.commands.common import guarded, people
from crossgrade.errors import CrossgradeError, ExitCode, WrongOptionsError
from crossgrade.failures.explaining import Explanation, explain
from crossgrade.failures.reading import Output, output_of, read_output
from crossgrade.jsontype import JSON
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line, explanation_lines

Options = Mapping[str, Any]
SCHEMA = 1
_LONGEST_PATH = 4096


def explain_command(options: Options) -> int:
    """Exit code 0 when a known failure is in it, 2 when none is, 1 when it cannot be read."""
    return guarded(lambda: _explain(options))


def _explain(options: Options) -> int:
    context = {**_here(), **_context(options["context"] or ())}
    name, output = _asked(options["text"] or ())
    found = explain(output, context)
    if options["json"]:
        sys.stdout.write(json.dumps(_to_json(name, output, found)) + "\n")
    else:
        Terminal(people(options)).write(_lines(output, found))
    return ExitCode.DONE if found else ExitCode.FAILED


def _context(given: Sequence[str]) -> dict[str, str]:
    """`key=value` words. Raises WrongOptionsError."""
    context = {}
    for word in given:
        key, equals, value = word.partition("=")
        if not (equals and key.isidentifier()):
            raise WrongOptionsError(f"--context needs key=value, not {word!r}", remedy="Such as --context gpu=12.0")
        context[key.lower()] = value
    return context


def _here() -> dict[str, str]:
    """What this machine says without being asked twice: the driver's version. (nvidia-smi would wake every GPU.)"""
    from crossgrade.inspect.machine import driver_version

    found = driver_version()
    return {"driver": found} if found else {}


def _asked(words: Sequence[str]) -> tuple[str, Output]:
    """What was given: the name of a file or "" for text, and the output. Raises CrossgradeError for what is no text."""
    if not words:
        if sys.stdin.isatty():
            raise WrongOptionsError("explain needs text, a file, or - for its input", remedy="crossgrade explain FILE")
        words = ("-",)
    if list(words) == ["-"]:
        return "-", output_of(sys.stdin.buffer.read())
    if len(words) == 1 and _is_path(words[0]):
        path = Path(words[0]).expanduser()
        try:
            return str(path), read_output(path)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise CrossgradeError(f"{path} cannot be read: {why}") from error
    return "", output_of(" ".join(words))


def _is_path(word: str) -> bool:
    """Whether a word is meant as a file: it is there, or it looks like nothing else."""
    if len(word) > _LONGEST_PATH or "\n" in word or "\0" in word:
        return False
    try:
        if Path(word).expanduser().exists():
            return True
    except (OSError, RuntimeError):  # a name that is too long; a home that nobody has
        return False
    if any(letter.isspace() for letter in word):
        return False
    return word.startswith(("/", "./", "../", "~")) or word.endswith((".log", ".txt", ".out", ".err"))


def _to_json(name: str, output: Output, found: Sequence[Explanation]) -> dict[str, JSON]:
    """The first explanation stands at the top too, for who wants one answer."""
    explanations: list[JSON] = [each.to_json() for each in found]
    first: dict[str, JSON] = found[0].to_json() if found else {"kind": None}
    tail: list[JSON] = list(output.tail())
    return {
        "schema": SCHEMA,
        "file": name or None,
        "explained": bool(found),
        **first,
        "explanations": explanations,
        "tail": tail,
        "skipped_bytes": output.skipped,
    }


def _lines(output: Output, found: Sequence[Explanation]) -> Iterator[Line]:
    for number, explanation in enumerate(found):
        if number:
            yield Line("")
        yield from explanation_lines(explanation.to_json())
    if output.skipped:
        yield Line(f"it is large: {output.skipped} bytes in its middle were not read", "warning")
    if found:
        return
    yield Line("nothing known is in it: no signature of knowledge/failures.yml fits", "warning")
    if output.tail():
        yield Line("its last lines:", "heading")
        yield from (Line(f"  {line}") for line in output.tail())
