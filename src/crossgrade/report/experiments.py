"""The records of experiments as tables, before and after: Markdown, and one HTML file that needs no network. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossgrade.gates.experiments import Experiment, StaticAnswer

Record = Mapping[str, Any]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .5rem .7rem; border-bottom: 1px solid #8886; }
td { overflow-wrap: anywhere; }
code { font-size: .85em; overflow-wrap: anywhere; }
.outcome { font-weight: 600; }
.faster { color: light-dark(#116329, #57d27a); }
.slower, .mixed { color: light-dark(#8a4b00, #f0b060); }
@media (max-width: 45rem) {
  thead { display: none; }
  table, tbody { display: block; }
  tr { display: block; padding: .8rem 0; border-bottom: 1px solid #8886; }
  td { display: block; border: 0; padding: .1rem 0; }
  td:first-child { font-weight: 600; }
  td:nth-child(2)::before { content: "Before: "; }
}
.blocked { color: light-dark(#a40e26, #ff8f8f); }
"""


@dataclass(frozen=True)
class TableRow:
    """One experiment in the tables: `before` and `after` in words, `evidence` line by line.

    `outcome` is that of the newest record, "" where there is none; `history` are all records of it, oldest first.
    """

    name: str
    title: str
    difference: str
    before: str
    outcome: str
    after: str
    evidence: tuple[str, ...]
    history: tuple[Record, ...]


def rows_of(
    known: Mapping[str, Experiment], records: Sequence[Record], static: Mapping[str, StaticAnswer]
) -> tuple[TableRow, ...]:
    """A row for each experiment that is known or on record, in the table's order, then those of playbooks.

    Before is the newest record of another generation than the last one, else what the table knows from before.
    """
    names = list(dict.fromkeys([*known, *(str(record["experiment"]) for record in records)]))
    return tuple(_row(name, known.get(name), records, static.get(name)) for name in names)


def _row(name: str, known: Experiment | None, records: Sequence[Record], static: StaticAnswer | None) -> TableRow:
    history = tuple(record for record in records if record["experiment"] == name)
    last = history[-1] if history else None
    title = known.title if known else str((last or {}).get("title", name))
    before = known.before if known else str((last or {}).get("before", ""))
    if last is not None:
        earlier = [record for record in history if record.get("generation") != last.get("generation")]
        if earlier:
            before = f"{earlier[-1]['outcome']} (generation {earlier[-1].get('generation')}): {earlier[-1]['reason']}"
    difference = static.difference if static else str((last or {}).get("difference", ""))
    evidence: tuple[str, ...]
    if last is not None:
        outcome, after = str(last["outcome"]), str(last["reason"])
        evidence = tuple(map(str, last.get("evidence", ())))
    else:
        outcome, (after, evidence) = "", static_words(static)
    return TableRow(name, title, difference, before, outcome, after, evidence, history)


def static_words(static: StaticAnswer | None) -> tuple[str, tuple[str, ...]]:
    """What the sources say, in one line, and the lines that say it."""
    if static is None:
        return "", ()
    said = static.reasons or static.conditions
    text = "; ".join(reading.text for reading in said)
    quotes = tuple(str(quote) for reading in said for quote in reading.quotes)
    head = {
        "refused": "cannot work by its sources",
        "can be tried": "can be tried",
        "not known": "its sources do not say",
    }[static.answer]
    return (f"{head}: {text}" if text else head), quotes


# ---- Markdown


def markdown(rows: Sequence[TableRow], heading: str) -> str:
    """The whole page."""
    return "\n".join(_markdown(rows, heading)) + "\n"


def _markdown(rows: Sequence[TableRow], heading: str) -> Iterator[str]:
    yield f"# Experiments: {heading}"
    yield ""
    yield "| experiment | tried with | before | outcome | after |"
    yield "| --- | --- | --- | --- | --- |"
    for row in rows:
        cells = [row.title, f"`{row.difference}`" if row.difference else "", row.before, row.outcome, row.after]
        yield "| " + " | ".join(cell(each) for each in cells) + " |"
    for row in rows:
        if row.evidence:
            yield ""
            yield f"## {row.title}"
            yield ""
            for line in row.evidence:
                yield f"    {line}"


def cell(text: str) -> str:
    """A text that cannot leave its cell, nor be taken for HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


# ---- HTML


def page(rows: Sequence[TableRow], heading: str) -> str:
    """One self-contained HTML page."""
    said = html.escape(heading)
    body = "\n".join(map(_html_row, rows))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Experiments: {said}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Experiments: {said}</h1>
<div class="table">
<table>
<thead><tr><th>Experiment</th><th>Before</th><th>Outcome</th><th>After</th></tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>
</body>
</html>
"""


def _html_row(row: TableRow) -> str:
    evidence = "".join(f"<li><code>{html.escape(line)}</code></li>" for line in row.evidence)
    shown = f"<details><summary>Evidence</summary><ul>{evidence}</ul></details>" if evidence else ""
    difference = f"<br><code>{html.escape(row.difference)}</code>" if row.difference else ""
    return (
        f"<tr><td>{html.escape(row.title)}{difference}</td><td>{html.escape(row.before)}</td>"
        f'<td class="outcome {_class(row.outcome)}">{html.escape(row.outcome or "not tried yet")}</td>'
        f"<td>{html.escape(row.after)}{shown}</td></tr>"
    )


def _class(outcome: str) -> str:
    ending = {"unblocked and faster": "faster", "unblocked and slower": "slower", "still blocked": "blocked"}
    return ending.get(outcome, "mixed" if outcome.startswith("unblocked, faster") else "")
