"""The plan document of experiments: updated where it is ours, kept to the letter where it is a person's. Pure.

Each experiment has a block between markers, in which only the notes are a person's; everything outside of blocks is a
person's too. A history that stands in the document stays, also when the store that it came from is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from crossgrade.report.experiments import Record, TableRow, cell

_HEAD = """# Plan: what to try again

crossgrade keeps the blocks below up to date. Write between the lines `notes` and `end of notes` of a block, or outside
of blocks: that is never changed.
"""
_BLOCK = re.compile(
    r"^<!-- crossgrade: experiment (?P<name>[\w.-]+) -->\n(?P<body>.*?)^<!-- crossgrade: end of (?P=name) -->\n",
    re.DOTALL | re.MULTILINE,
)
_NOTES = re.compile(r"^<!-- notes -->\n(?P<notes>.*?)^<!-- end of notes -->\n", re.DOTALL | re.MULTILINE)
_HISTORY = re.compile(r"^- \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ, .*$", re.MULTILINE)
_BEGIN = re.compile(r"^<!-- crossgrade: experiment (?P<name>[\w.-]+) -->$", re.MULTILINE)


def update_plan(text: str, rows: Sequence[TableRow]) -> str:
    """The document with these rows: blocks that are there are renewed in place, new ones are added at the end.

    A block whose experiment is not among the rows stays as it is. Raises ValueError, with the block's name, for a
    document with a block that has no end, two blocks of one name, or notes that have no end: it is not guessed what a
    person wrote.
    """
    check(text)
    wanted = {row.name: row for row in rows}

    def renewed(match: re.Match[str]) -> str:
        row = wanted.pop(match["name"], None)
        return match[0] if row is None else "\n".join(_block(row, match["body"])) + "\n"

    updated = _BLOCK.sub(renewed, text or _HEAD)
    for row in wanted.values():
        updated = updated.rstrip("\n") + "\n\n" + "\n".join(_block(row, "")) + "\n"
    return updated


def check(text: str) -> None:
    """Raises ValueError for a document whose blocks are not whole."""
    begun = [match["name"] for match in _BEGIN.finditer(text)]
    whole = {match["name"]: match["body"] for match in _BLOCK.finditer(text)}
    for name in begun:
        if begun.count(name) > 1:
            raise ValueError(f"the block of {name} is there twice")
        if name not in whole or _BEGIN.search(whole[name]):
            raise ValueError(f"the block of {name} has no line `<!-- crossgrade: end of {name} -->`")
        if whole[name].count("<!-- notes -->") != 1 or not _NOTES.search(whole[name]):
            raise ValueError(f"the notes of {name} have lost a line of theirs (`notes` or `end of notes`)")


def _block(row: TableRow, old: str) -> Iterator[str]:
    notes = _NOTES.search(old)
    yield f"<!-- crossgrade: experiment {row.name} -->"
    yield f"## {row.title}"
    yield ""
    if row.difference:
        yield f"- Tried with: `{row.difference}`"
    yield f"- Before: {_line(row.before) or 'not known'}"
    yield f"- Now: {f'**{row.outcome}**: ' if row.outcome else ''}{_line(row.after) or 'not tried yet'}"
    for line in row.evidence:
        yield f"    - `{_line(line).replace('`', chr(39))}`"
    yield ""
    history = _history(row.history, old)
    if history:
        yield "History:"
        yield ""
        yield from history
        yield ""
    yield "<!-- notes -->"
    if notes is not None:
        yield from notes["notes"].splitlines()
    yield "<!-- end of notes -->"
    yield f"<!-- crossgrade: end of {row.name} -->"


def _history(records: Sequence[Record], old: str) -> list[str]:
    """What the document says already, and what the records add; each once, oldest first."""
    before_notes = old.partition("<!-- notes -->")[0]
    lines = [*_HISTORY.findall(before_notes), *map(history_line, records)]
    return sorted(dict.fromkeys(lines))


def history_line(record: Mapping[str, object]) -> str:
    """`- 2026-12-02T10:00:00Z, generation 2 (sglang 0.5.23): still blocked: why`"""
    version = f" ({record['version']})" if record.get("version") else ""
    where = f"generation {record.get('generation')}{version}"
    return f"- {record['when']}, {where}: {record['outcome']}: {_line(str(record['reason']))}"


def _line(text: str) -> str:
    """One line that cannot be taken for a marker."""
    return cell(text).replace("\\|", "|")
