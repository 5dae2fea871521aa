"""What the YAML parser's complaints mean, said so that the mistake can be seen.

Where it is certain what was meant, the line is also given as it should be: the reader goes on with it and so finds
the other mistakes of the file too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from crossgrade.errors import Place
from crossgrade.playbook.explain_lines import explain_lines
from crossgrade.playbook.explained import Explanation, Lines
from crossgrade.playbook.positions import PlaybookProblem, excerpt_of
from crossgrade.playbook.quoting import to_write, with_template_in_quotes


@dataclass(frozen=True)
class Explained:
    """A problem, and the lines (number from 0 → text) as they were meant; none where that is not certain."""

    problem: PlaybookProblem
    mended: dict[int, str]


def looks_like_unquoted_template(text: str, line: int, column: int) -> bool:
    """Whether the value at this position (from 0) starts with `{{` and has no quotes."""
    return "{{" in Lines(text).at(line)[max(0, column - 1) : column + 2]


def quoted_template(text: str, line: int) -> str:
    """What to write instead of a line with an unquoted template."""
    quoted = with_template_in_quotes(Lines(text).at(line))
    return f"Put the whole value in quotes: `{to_write(quoted)}`." if quoted else "Put the whole value in quotes."


def explain_syntax_error(error: Exception, text: str, file: str, written: str) -> Explained:
    """A problem with place, excerpt and remedy for an error of the YAML parser in `text`, which was `written` so."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        return Explained(_unreadable_character(error, text, file), {})
    found = str(getattr(error, "problem", None) or error)
    context_mark = getattr(error, "context_mark", None)
    lines = Lines(text, mark.line, mark.column)
    if context_mark is not None:
        lines = Lines(text, mark.line, mark.column, context_mark.line, context_mark.column)
    explained = explain_lines(found, lines) or _by_words(found, lines)
    line, column = (mark.line, mark.column) if explained.at is None else explained.at
    problem = PlaybookProblem(
        explained.message,
        remedy=explained.remedy,
        place=Place(file, line + 1, column + 1),
        excerpt=excerpt_of(written, line + 1, column + 1),
    )
    return Explained(problem, explained.mended)


def _unreadable_character(error: Exception, text: str, file: str) -> PlaybookProblem:
    position: Any = getattr(error, "position", 0)
    position = position if isinstance(position, int) and 0 <= position <= len(text) else 0
    bad = next((at for at, letter in enumerate(text) if _unreadable(letter)), position)
    line = text.count("\n", 0, bad)
    column = bad - (text.rfind("\n", 0, bad) + 1)
    code = f"U+{ord(text[bad]):04X}" if bad < len(text) else "at the end"
    return PlaybookProblem(
        f"the character {code} cannot stand in YAML text",
        remedy="Remove it: is this a text file?",
        place=Place(file, line + 1, column + 1),
        excerpt=excerpt_of(text, line + 1, column + 1),
    )


def _unreadable(letter: str) -> bool:
    code = ord(letter)
    control = (code < 32 and letter not in "\t\n\r") or (127 <= code < 160 and code != 0x85)
    return control or 0xD800 <= code < 0xE000


def _by_words(found: str, lines: Lines) -> Explanation:
    """What can be said from the parser's own words."""
    if "unexpected end of stream" in found:
        braces = "{{" in lines.at(lines.start) and "}}" not in lines.at(lines.start)
        remedy = (
            'Add the closing quote, and the `}}` in front of it: "{{ … }}".' if braces else "Add the closing quote."
        )
        return Explanation("a quote that is opened here is never closed", remedy, (lines.start, lines.start_column))
    if "mapping values are not allowed" in found:
        return Explanation(
            "a `:` where no key can stand",
            "Put text that holds `: ` in quotes, or check the indentation here and in the line above.",
        )
    if "did not find expected key" in found or "could not find expected ':'" in found:
        return Explanation(
            "a key with a `:` was expected here",
            "Check the indentation here and in the line above, and look for a missing quote or `:`.",
        )
    if "did not find expected '-' indicator" in found:
        return Explanation(
            "a list item (`- …`) was expected here",
            "All items of a list start in the same column, and keys of an item below its first key.",
        )
    return Explanation(f"not valid YAML: {found}", "Check quotes, brackets and indentation near here.")
