"""The mistakes that people make in YAML, recognised in the lines around the place where the parser gave up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from crossgrade.playbook.explain_indentation import has_value, indent_of, open_levels, wrong_indentation
from crossgrade.playbook.explained import Explanation, Lines
from crossgrade.playbook.quoting import (
    as_text,
    to_write,
    unclosed_bracket,
    unquoted_template,
    with_template_in_quotes,
    without_comment,
)

# - key: value
_KEY = r"(?P<head>\s*(?:-\s+)*(?:[^\s#'\"{\[:,&*!|>%@`-][^#:'\"]*?|\"[^\"]*\"|'[^']*'):\s+|\s*(?:-\s+)+)"
_ONLY_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}\s*(#.*)?$")
_TEXT_AFTER_QUOTE = re.compile(
    _KEY + r"(?P<quoted>(?P<quote>[\"'])(?:(?!(?P=quote)).)*(?P=quote))(?P<rest>\s*[^\s#,}\]].*)$"
)
_COLON_IN_TEXT = re.compile(_KEY + r"(?P<value>[^\s'\"{\[|>&*!%@`#].*)$")
_NO_SPACE = re.compile(r"^(?P<head>\s*(?:-\s+)*)(?P<key>[A-Za-z_][\w.]*):(?P<value>[^\s/\\:].*)$")
_EQUALS = re.compile(r"^(?P<head>\s*(?:-\s+)*)(?P<key>[A-Za-z_][\w.]*)\s+=\s+(?P<value>\S.*)$")
_SHORT_FORM = re.compile(r"^\s*(?:-\s+)*(?P<module>[\w.]+):\s+\w+=\S")
_WORDS = re.compile(r"^(?P<head>\s*(?:-\s+)*)(?P<key>[A-Za-z_][\w.]*)(?P<value>\s+[^:#]*)?$")
_ONE_LINE = re.compile(r"[a-z_]+: ")
_CURLY = re.compile(_KEY + "(?P<value>[\u201c\u201d\u2018\u2019].*)$")
_SPECIAL = re.compile(_KEY + r"(?P<value>[@`%*&!].*)$")
_CONFLICT = re.compile(r"^(<{7}|={7}|>{7})( .*)?$")
_ODD_SPACE = re.compile("(?:^[ \t]*|: *|^[ \t]*- *)([\u00a0\u1680\u2000-\u200b\u202f\u205f\u3000\ufeff])")
_LONGEST_LINE = 5_000  # characters: no person wrote a longer one
_LINES_OF_A_LIST = 50  # so far above the bracket is looked for that a list begins with
_CONDITIONS = re.compile(r"\b(when|until|changed_when|failed_when|that)\b")


def explain_lines(found: str, lines: Lines) -> Explanation | None:
    """The first mistake that is recognised near the parser's place; None when none is. `found` are its own words."""
    if any(len(lines.at(number)) > _LONGEST_LINE for number in lines.near()):
        return None
    recognised: list[Callable[[str, Lines], Explanation | None]] = [
        _merge_conflict,
        _tab,
        _odd_space,
        _template,
        _curly_quotes,
        _after_quote,
        _brackets,
        _escape,
        _special_beginning,
        _colon_in_text,
        _missing_space,
        _equals_sign,
        _missing_colon,
        wrong_indentation,
    ]
    return next(filter(None, (recognise(found, lines) for recognise in recognised)), None)


def _merge_conflict(_found: str, lines: Lines) -> Explanation | None:
    marks = [number for number, line in enumerate(lines.lines) if _CONFLICT.match(line)]
    if len(marks) < 2:
        return None
    return Explanation(
        "git's marks of a merge conflict",
        "Keep one of the two versions, and remove the lines `<<<<<<<`, `=======` and `>>>>>>>`.",
        (marks[0], 0),
        dict.fromkeys(_of_theirs(lines.lines, marks), ""),
    )


def _of_theirs(lines: Sequence[str], marks: list[int]) -> Iterator[int]:
    """The marks, and what stands between `=======` and `>>>>>>>`."""
    theirs = False
    for number, line in enumerate(lines):
        theirs = line.startswith("=") if number in marks else theirs
        if theirs or number in marks:
            yield number


def _tab(_found: str, lines: Lines) -> Explanation | None:
    for number in lines.near():
        here = lines.at(number)
        indentation = here[: len(here) - len(here.lstrip())]
        if "\t" not in indentation:
            continue
        return Explanation(
            "a tab is used for indentation",
            "YAML allows only spaces there: replace each tab by spaces.",
            (number, indentation.index("\t")),
            _without_tab(lines, number, indentation),
        )
    return None


def _without_tab(lines: Lines, number: int, indentation: str) -> dict[int, str]:
    """The line with spaces, where one of the usual widths of a tab puts it into a column that fits."""
    text = lines.at(number)[len(indentation) :].rstrip()
    if text.startswith("- ") or text.endswith(":"):  # what stands below it would have to move too
        return {}
    levels = list(open_levels(lines, number))
    for width in (8, 4, 2):
        spaces = indentation.expandtabs(width)
        deeper = levels and len(spaces) > levels[0].column and not has_value(lines.at(levels[0].line))
        if deeper or any(level.column == len(spaces) for level in levels):
            return {number: spaces + text}
    return {}


def _odd_space(_found: str, lines: Lines) -> Explanation | None:
    for number in lines.near():
        match = _ODD_SPACE.match(lines.at(number))
        if match:
            return Explanation(
                f"the character U+{ord(match[1]):04X} looks like a space and is none",
                "Replace it by a space: it came along with copied text.",
                (number, match.start(1)),
                {number: lines.at(number).replace(match[1], " ")},
            )
    return None


def _template(_found: str, lines: Lines) -> Explanation | None:
    for number in lines.near():
        here = lines.at(number)
        found, mended = unquoted_template(here), with_template_in_quotes(here)
        if found is None or mended is None or _ONLY_TEMPLATE.match(here[slice(*found)]):
            continue  # a template alone is no error of syntax: it is a mapping
        return Explanation(
            "a value that starts with `{{` needs quotes",
            f"Put the whole value in quotes: `{to_write(mended)}`.",
            (number, found[0]),
            {number: mended},
        )
    return None


def _after_quote(_found: str, lines: Lines) -> Explanation | None:
    for number in lines.near():
        match = _TEXT_AFTER_QUOTE.match(lines.at(number))
        if match is None:
            continue
        mended = match["head"] + _whole(match)
        return Explanation(
            "there is more text after the closing quote",
            f"The quotes must be around the whole value: `{to_write(mended)}`.",
            (number, match.start("rest") + len(match["rest"]) - len(match["rest"].lstrip())),
            {number: mended},
        )
    return None


def _whole(match: re.Match[str]) -> str:
    """The value, of which only the beginning stands in quotes, as it was meant."""
    quoted, rest = match["quoted"], without_comment(match["rest"]).rstrip()
    if _CONDITIONS.search(match["head"]):
        template = re.fullmatch(r"[\"']\{\{\s*([^{}]*?)\s*\}\}[\"']", quoted)
        return f"{template[1]}{rest}" if template else as_text(quoted + rest)
    if rest.endswith(quoted[0]):  # "say "hello" to it"
        return as_text((quoted + rest)[1:-1])
    return as_text(quoted[1:-1] + rest)


def _brackets(found: str, lines: Lines) -> Explanation | None:
    """`[` and `{`: one that is never closed, one too many, a comma that is missing."""
    here = lines.at(lines.line)
    expected = re.search(r"expected ',' or '([\]}])'", found)
    if expected:
        opened = "[" if expected[1] == "]" else "{"
        where = lines.at(lines.start)
        opening = where.find(opened, max(0, lines.start_column - 1))
        closed = lines.start == lines.line and expected[1] in here[lines.column :]
        if closed:
            before = here[: lines.column].rstrip()
            said = re.search(r"\S+$", before)
            word = f" before `{said[0]}`" if said and said[0].endswith(":") else ""
            return Explanation(
                f"a comma is missing{word}", f"Between `{opened}` and `{expected[1]}`, commas part the items."
            )
        return _never_closed(opened, lines.start, max(opening, 0))
    if "expected node content" in found:
        for number in range(lines.line, max(-1, lines.line - _LINES_OF_A_LIST), -1):
            column = unclosed_bracket(lines.at(number))
            if column is not None and number < lines.line:
                return _never_closed(lines.at(number)[column], number, column)
    if here[lines.column : lines.column + 1] in ("]", "}"):
        bracket = here[lines.column]
        return Explanation(f"this `{bracket}` closes nothing", "Remove it, or add the one that opens.")
    return None


def _never_closed(opened: str, line: int, column: int) -> Explanation:
    closing = "]" if opened == "[" else "}"
    return Explanation(
        f"this `{opened}` is never closed",
        f"Add the `{closing}`. A text that begins with `{opened}` needs quotes.",
        (line, column),
    )


def _escape(found: str, lines: Lines) -> Explanation | None:
    if "escape character" not in found:
        return None
    here = lines.at(lines.line)
    at = here.rfind("\\", 0, lines.column + 1)
    match = re.search(r'"((?:[^"\\]|\\.)*)"', here)
    mended = {}
    if match and "'" not in match[1] and match.start() <= at <= match.end():
        mended = {lines.line: here[: match.start()] + f"'{match[1]}'" + here[match.end() :]}
    return Explanation(
        f"`{here[at : at + 2]}` means nothing between double quotes",
        "Use single quotes, between which a backslash is only a backslash, or write it twice.",
        (lines.line, max(at, 0)),
        mended,
    )


def _special_beginning(found: str, lines: Lines) -> Explanation | None:
    if not any(words in found for words in ("cannot start any token", "alphabetic or numeric", "tag", "directive")):
        return None
    for number in lines.near()[:1]:
        here = lines.at(number)
        match = _SPECIAL.match(here)
        if match and "[" not in match["head"] and "{" not in match["head"]:
            mended = match["head"] + as_text(match["value"])
            return Explanation(
                f"a text that begins with `{match['value'][0]}` needs quotes",
                f"Write `{to_write(mended)}`.",
                (number, match.start("value")),
                {number: mended},
            )
    if "cannot start any token" in found:
        letter = lines.at(lines.line)[lines.column : lines.column + 1]
        return Explanation(f"a text that begins with `{letter}` needs quotes", "Put the whole text in quotes.")
    return None


def _colon_in_text(found: str, lines: Lines) -> Explanation | None:
    """`name: Note: this`, where the parser stops at the second colon of the line."""
    if "mapping values are not allowed" not in found:
        return None
    here = lines.at(lines.line)
    match = _COLON_IN_TEXT.match(here)
    if match is None or lines.column < match.start("value"):
        return None
    mended = match["head"] + as_text(match["value"])
    key = match["head"].strip().removeprefix("- ").rstrip(": ")
    if _ONE_LINE.match(match["value"]) and key not in ("name", "msg"):
        inner = match["value"].partition(":")[0]
        return Explanation(
            f"`{key}:` and `{inner}:` stand in one line",
            f"Begin a new line with `{inner}:`, indented below `{key}:`; if it is text, write `{to_write(mended)}`.",
            (lines.line, match.start("value")),
        )
    return Explanation(
        "a text that holds `: ` needs quotes",
        f"Write `{to_write(mended)}`.",
        (lines.line, lines.column),
        {lines.line: mended},
    )


def _missing_space(_found: str, lines: Lines) -> Explanation | None:
    for number in lines.near():
        match = _NO_SPACE.match(lines.at(number))
        if match:
            mended = f"{match['head']}{match['key']}: {match['value']}"
            return Explanation(
                f"there is no space behind the `:` of `{match['key']}:`",
                f"Write `{to_write(mended)}`.",
                (number, match.start("value")),
                {number: mended},
            )
    return None


def _curly_quotes(_found: str, lines: Lines) -> Explanation | None:
    for number in lines.near():
        match = _CURLY.match(lines.at(number))
        if match is None:
            continue
        mended = match["head"] + as_text(re.sub("[\u201c\u201d\u2018\u2019]", "", match["value"]))
        return Explanation(
            f"`{match['value'][0]}` is no quote in YAML",
            f"Write `{to_write(mended)}`: it came along with copied text.",
            (number, match.start("value")),
            {number: mended},
        )
    return None


def _missing_colon(found: str, lines: Lines) -> Explanation | None:
    """`- copy` without its `:`, above arguments or other keys."""
    if not any(words in found for words in ("mapping values", "could not find expected ':'")):
        return None
    above = lines.above(lines.line)
    for number in (above, lines.line):
        match = _WORDS.match(lines.at(number))
        if match is None or not match["key"]:
            continue
        mended = f"{match['head']}{match['key']}:{(match['value'] or '').rstrip()}"
        return Explanation(
            f"there is no `:` behind `{match['key']}`",
            f"Write `{to_write(mended)}`.",
            (number, match.end("key")),
            {number: mended},
        )
    return None


def _equals_sign(_found: str, lines: Lines) -> Explanation | None:
    for number in lines.near():
        match = _EQUALS.match(lines.at(number))
        if match:
            mended = f"{match['head']}{match['key']}: {match['value']}"
            return Explanation(
                f"`{match['key']} = …` is no entry of a mapping",
                f"Write `{to_write(mended)}`.",
                (number, match.start("key")),
                {number: mended},
            )
    above = lines.at(lines.above(lines.line))
    short = _SHORT_FORM.match(above)
    if short and lines.at(lines.line).strip():
        return Explanation(
            f"`{short['module']}` has arguments behind it already, as `key=value`",
            "Write all of them as `key=value` in that line, or each in a line of its own as `key: value`.",
            (lines.line, indent_of(lines.at(lines.line))),
        )
    return None
