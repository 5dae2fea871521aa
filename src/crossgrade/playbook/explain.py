"""What the YAML parser's complaints mean, said so that the mistake can be seen."""

from __future__ import annotations

import re
from typing import Any

from crossgrade.errors import Place
from crossgrade.playbook.positions import PlaybookProblem, excerpt_of

_UNQUOTED_TEMPLATE = re.compile(r"^\s*(?:-\s+)*(?:[^\s:'\"#][^:'\"]*:\s+|-\s+)\{\{")
_TEXT_AFTER_QUOTE = re.compile(r""":\s+(?P<quote>["'])(?:(?!(?P=quote)).)*(?P=quote)\s*[^\s#,}\]]""")
_QUOTE_ADVICE = 'Put the whole value in quotes: "{{ … }}/rest".'


def _line(text: str, number: int) -> str:
    lines = text.split("\n")
    return lines[number] if 0 <= number < len(lines) else ""


def looks_like_unquoted_template(text: str, line: int, column: int) -> bool:
    """Whether the value at this position (from 0) starts with `{{` and has no quotes."""
    return "{{" in _line(text, line)[max(0, column - 1) : column + 2]


def explain_syntax_error(error: Exception, text: str, file: str) -> PlaybookProblem:
    """A problem with place, excerpt and remedy for an error of the YAML parser."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        return _unreadable_character(error, text, file)
    line, column = mark.line, mark.column
    found = str(getattr(error, "problem", None) or error)
    context_mark = getattr(error, "context_mark", None)
    start = context_mark.line if context_mark is not None else line
    message, remedy, at = _explain(found, text, line, start)
    if at == (start, 0) and context_mark is not None:
        at = (start, context_mark.column)
    if at is not None:
        line, column = at
    return PlaybookProblem(
        message,
        remedy=remedy,
        place=Place(file, line + 1, column + 1),
        excerpt=excerpt_of(text, line + 1, column + 1),
    )


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


def _explain(found: str, text: str, line: int, start: int) -> tuple[str, str, tuple[int, int] | None]:
    """Message, remedy, and a better position (from 0) where there is one."""
    for number in dict.fromkeys((line, line - 1, start)):
        here = _line(text, number)
        indentation = here[: len(here) - len(here.lstrip())]
        if "\t" in indentation:
            return (
                "a tab is used for indentation",
                "YAML allows only spaces there: replace each tab by spaces.",
                (number, indentation.index("\t")),
            )
        if _UNQUOTED_TEMPLATE.match(here):
            return "a value that starts with `{{` needs quotes", _QUOTE_ADVICE, (number, here.index("{{"))
        after_quote = _TEXT_AFTER_QUOTE.search(here)
        if after_quote:
            return (
                "there is more text after the closing quote",
                f"The quotes must be around the whole value. {_QUOTE_ADVICE}",
                (number, after_quote.end() - 1),
            )
    if "unexpected end of stream" in found:
        return "a quote that is opened here is never closed", "Add the closing quote.", (start, 0)
    if "mapping values are not allowed" in found:
        return (
            "a `:` where no key can stand",
            "Put text that holds `: ` in quotes, or check the indentation here and in the line above.",
            None,
        )
    if "did not find expected key" in found or "could not find expected ':'" in found:
        return (
            "a key with a `:` was expected here",
            "Check the indentation here and in the line above, and look for a missing quote or `:`.",
            None,
        )
    if "did not find expected '-' indicator" in found:
        return (
            "a list item (`- …`) was expected here",
            "All items of a list start in the same column, and keys of an item below its first key.",
            None,
        )
    if "cannot start any token" in found:
        return f"not valid YAML: {found}", "Put text that starts with a special character in quotes.", None
    return f"not valid YAML: {found}", "Check quotes, brackets and indentation near here.", None
