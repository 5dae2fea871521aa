"""Where a value of a line ends, and how it is written between quotes."""

from __future__ import annotations

import re

_COMMENT = re.compile(r"(?<!\s)\s+#.*$")  # from the first space on: long runs of spaces are looked at once
_LONGEST_SHOWN = 160  # characters
_VALUE_BEGINS = re.compile(r"(?:[:\-?,\[{]\s*|^\s*)$")


def without_comment(line: str) -> str:
    """A line without the comment at its end."""
    return _COMMENT.sub("", line)


def to_write(line: str) -> str:
    """A line as a remedy shows it."""
    bare = line.strip()
    return bare if len(bare) <= _LONGEST_SHOWN else f"{bare[:_LONGEST_SHOWN]}…"


def as_text(value: str) -> str:
    """A value in quotes, without a comment behind it."""
    bare = without_comment(value).strip()
    if '"' in bare or "\\" in bare:
        return "'" + bare.replace("'", "''") + "'"
    return f'"{bare}"'


def unquoted_template(line: str) -> tuple[int, int] | None:
    """Start and end of the first value of a line that begins with `{{` and has no quotes; None where none does.

    Between brackets (`[a, {{ b }}/c]`) a value ends at the next comma or bracket, else with the line.
    """
    at, quote, opened = 0, "", 0
    while at < len(line):
        letter = line[at]
        if quote:
            quote = "" if letter == quote else quote
        elif line.startswith("{{", at):
            if _VALUE_BEGINS.search(line[max(0, at - 40) : at]):
                return at, _end(line, at, within=opened > 0)
            at = _behind_template(line, at) - 1
        elif letter in "[{":
            opened += 1
        elif letter in "]}":
            opened -= 1
        elif letter in "\"'" and _VALUE_BEGINS.search(line[max(0, at - 40) : at]):
            quote = letter
        elif letter == "#" and line[at - 1 : at].strip() == "":
            return None
        at += 1
    return None


def _behind_template(line: str, at: int) -> int:
    closing = line.find("}}", at)
    return closing + 2 if closing >= 0 else len(line)


def _end(line: str, at: int, *, within: bool) -> int:
    if not within:
        return len(without_comment(line).rstrip())
    while at < len(line):
        if line.startswith("{{", at):
            at = _behind_template(line, at)
        elif line[at] in ",]}":
            break
        else:
            at += 1
    return len(line[:at].rstrip())


def with_template_in_quotes(line: str) -> str | None:
    """The line with quotes around the first value that begins with `{{`; None where there is none."""
    found = unquoted_template(line)
    if found is None:
        return None
    start, end = found
    return line[:start] + as_text(line[start:end]) + line[end:]


def unclosed_bracket(line: str) -> int | None:
    """The column of the innermost `[` or `{` of a line that is not closed in it; None where all are."""
    opened: list[int] = []
    quote = ""
    for at, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "[{":
            opened.append(at)
        elif letter in "]}" and opened:
            opened.pop()
        elif letter in "\"'" and _VALUE_BEGINS.search(line[max(0, at - 40) : at]):
            quote = letter
        elif letter == "#" and line[at - 1 : at].strip() == "":
            break
    return opened[-1] if opened else None
