"""`lint`: the risks of playbooks, and in a checkout without a playbook the linters of crossgrade's own code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from crossgrade.commands.common import complain, guarded, open_vaults, people
from crossgrade.errors import CrossgradeError, ExitCode, WrongOptionsError
from crossgrade.modules import NAMES, arguments_of
from crossgrade.playbook.check import check_templates
from crossgrade.playbook.loader import ModuleCatalogue, load_playbook
from crossgrade.playbook.positions import PlaybookErrors
from crossgrade.playbook.secrets import masked
from crossgrade.playbook.suggest import did_you_mean
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line
from crossgrade.risks.book import Finding, Rule
from crossgrade.risks.judging import RULES, risks

Options = Mapping[str, Any]
FIRST = "playbook.yml"  # what `init` writes


def lint_command(options: Options) -> int:
    """Exit code 0 without a finding, 1 with one, 4 when a playbook cannot be read, 5 for wrong options."""
    return guarded(lambda: _lint(options))


def _lint(options: Options) -> int:
    if options["rules"]:
        return _list_rules(options)
    skip = {name.strip() for text in options["skip"] or () for name in text.split(",") if name.strip()}
    for name in sorted(skip - set(RULES)):
        raise WrongOptionsError(f"there is no rule {name!r}", remedy=did_you_mean(name, RULES) or "`lint --rules`.")
    open_vaults(options)
    files = [Path(name).expanduser() for name in options["file"] or ()]
    own = not files and in_checkout()
    if own:
        from crossgrade.commands.development import code_is_clean

        clean = code_is_clean(fix=options["fix"])
        files = [path for path in sorted(Path("playbooks").glob("*.yml")) if "inventory" not in path.name]
    elif options["fix"]:
        raise WrongOptionsError("--fix is for crossgrade's own code: playbooks are mended by hand")
    elif not files:
        if not Path(FIRST).is_file():
            raise WrongOptionsError("no playbook is named", remedy="Such as `crossgrade lint playbook.yml`.")
        files = [Path(FIRST)]
    found: dict[str, tuple[Finding, ...]] = {}
    unreadable = False
    for file in files:
        try:
            found[str(file)] = risks_of(file, skip)
        except CrossgradeError as error:  # noqa: PERF203 - the other playbooks are judged all the same
            unreadable = True
            complain(str(error))
    if found or not unreadable:
        _tell(options, found)
    if unreadable:
        return ExitCode.UNREACHABLE
    return ExitCode.NOTHING_CHANGED if any(found.values()) or (own and not clean) else ExitCode.DONE


def in_checkout() -> bool:
    """Whether this is the top folder of a checkout of crossgrade."""
    return Path("src/crossgrade").is_dir() and Path("tests").is_dir() and Path("pyproject.toml").is_file()


def risks_of(file: Path, skip: Sequence[str] | set[str] = ()) -> tuple[Finding, ...]:
    """The risks in a playbook, for which no value under `!vault` is opened. Raises PlaybookErrors for a wrong one."""
    playbook = load_playbook(file, ModuleCatalogue(NAMES, arguments_of), keep_sealed=True)
    wrong = check_templates(playbook)
    if wrong:
        raise PlaybookErrors(wrong)
    return risks(playbook, skip)


def _tell(options: Options, found: Mapping[str, Sequence[Finding]]) -> None:
    findings = [finding for each in found.values() for finding in each]
    if options["json"]:
        data = masked([_to_json(finding) for finding in findings])
        sys.stdout.write(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
        return
    terminal = Terminal(people(options))
    explained: set[str] = set()
    for finding in findings:
        lines = _lines(finding, explain=finding.rule.name not in explained)
        terminal.write([replace(line, text=masked(line.text)) for line in lines])
        explained.add(finding.rule.name)
    where = next(iter(found)) if len(found) == 1 else f"{len(found)} playbooks"
    if findings:
        many = "1 risk" if len(findings) == 1 else f"{len(findings)} risks"
        terminal.write([Line(f"{many} in {where}. `# noqa: RULE` with a reason sets one aside.", "failed")])
    else:
        terminal.write([Line(f"no risk found in {where}", "ok")])


def _lines(finding: Finding, *, explain: bool) -> Iterator[Line]:
    task = f" (task {finding.task!r})" if finding.task else ""
    yield Line(f"{finding.place}: {finding.rule.name}: {finding.message}{task}", "warning")
    for text in finding.excerpt.splitlines():
        yield Line(f"  {text}")
    if explain:  # once for each rule
        yield Line(f"  {finding.rule.why}")
        yield Line(f"  {finding.rule.remedy}")


def _to_json(finding: Finding) -> dict[str, Any]:
    return {
        **_rule_json(finding.rule),
        "message": finding.message,
        "task": finding.task,
        "file": finding.place.file,
        "line": finding.place.line,
        "column": finding.place.column,
    }


def _rule_json(rule: Rule) -> dict[str, str]:
    return {"rule": rule.name, "why": rule.why, "remedy": rule.remedy}


def _list_rules(options: Options) -> int:
    if options["json"]:
        sys.stdout.write(json.dumps([_rule_json(rule) for rule in RULES.values()], indent=1) + "\n")
        return ExitCode.DONE
    for rule in RULES.values():
        sys.stdout.write(f"{rule.name}\n  {rule.why}\n  {rule.remedy}\n")
    return ExitCode.DONE
