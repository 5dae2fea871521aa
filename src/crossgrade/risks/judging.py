"""All rules on a playbook, without what a `# noqa` sets aside."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from crossgrade.errors import Place
from crossgrade.playbook.model import Playbook
from crossgrade.playbook.positions import Source, excerpt_of
from crossgrade.playbook.suggest import did_you_mean
from crossgrade.risks import pins, programs, transaction, wording
from crossgrade.risks.book import Book, Check, Finding, Rule

NOQA = Rule(
    "noqa-unused",
    "A remark that sets nothing aside hides the next risk at this place.",
    "Remove it, or correct the name of the rule.",
)
_CHECKS: tuple[Check, ...] = (transaction.check, programs.check, pins.check, wording.check)
RULES: dict[str, Rule] = {
    rule.name: rule
    for module in (transaction, programs, pins, wording)
    for rule in vars(module).values()
    if isinstance(rule, Rule)
} | {NOQA.name: NOQA}
_REMARK = re.compile(r"#\s*noqa\b(?::\s*([a-z][a-z-]*(?:\s*,\s*[a-z][a-z-]*)*))?")


def risks(playbook: Playbook, skip: Collection[str] = ()) -> tuple[Finding, ...]:
    """What the rules find, in the order of the file; each once for a place.

    A comment `# noqa: rule, rule` sets rules aside, `# noqa` all: in the line of the finding, in the first line of its
    task, or in a line of its own above one of them. One that sets nothing aside is a finding itself.
    """
    found: dict[tuple[str, str, int, int], Finding] = {}
    for finding in (each for check in _CHECKS for each in check(Book(playbook))):
        place = finding.place
        found.setdefault((finding.rule.name, place.file, place.line, place.column), finding)
    remarks = _Remarks(playbook)
    kept = [one for one in found.values() if not remarks.sets_aside(one) and one.rule.name not in skip]
    if NOQA.name not in skip:
        kept += remarks.unused(skip)
    return tuple(sorted(kept, key=lambda one: (one.place.file, one.place.line, one.place.column)))


class _Remarks:
    """The remarks in the files of a playbook, and which of them have set something aside."""

    def __init__(self, playbook: Playbook) -> None:
        self.sources: dict[str, Source] = {}
        for spot in (*(play.spot for play in playbook.plays), *(task.task.spot for task in Book(playbook).tasks)):
            self.sources.setdefault(spot.source.file, spot.source)
        self.rules: dict[tuple[str, int], tuple[str, ...]] = {}
        self.used: set[tuple[str, int, str]] = set()
        for file, source in self.sources.items():
            for number, line in enumerate(source.text.splitlines(), start=1):
                match = _REMARK.search(line)
                if match:
                    names = tuple(name.strip() for name in (match[1] or "").split(",") if name.strip())
                    self.rules[file, number] = names

    def sets_aside(self, finding: Finding) -> bool:
        for place in filter(None, (finding.place, finding.begins)):
            for line in self._lines(place.file, place.line):
                names = self.rules.get((place.file, line))
                if names is not None and (not names or finding.rule.name in names):
                    self.used.add((place.file, line, finding.rule.name if names else ""))
                    return True
        return False

    def _lines(self, file: str, line: int) -> Iterable[int]:
        yield line
        source = self.sources.get(file)
        lines = source.text.splitlines() if source else []
        if 1 < line <= len(lines) and lines[line - 2].lstrip().startswith("#"):
            yield line - 1

    def unused(self, skip: Collection[str]) -> Iterator[Finding]:
        for (file, line), names in self.rules.items():
            for name in names or ("",):
                if (file, line, name) in self.used or name in skip:
                    continue
                if name and name not in RULES:
                    message = f"there is no rule `{name}`. {did_you_mean(name, RULES)}".strip()
                else:
                    message = f"nothing is set aside here{f' by `{name}`' if name else ''}"
                column = self.sources[file].text.splitlines()[line - 1].index("#") + 1
                excerpt = excerpt_of(self.sources[file].text, line, column)
                yield Finding(NOQA, message, Place(file, line, column), excerpt)
