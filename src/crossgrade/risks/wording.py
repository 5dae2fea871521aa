"""Risks of what is written: secrets in plain text, conditions that are templates, names that nobody uses, settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from crossgrade.facts.secrets import is_secret, looks_secret
from crossgrade.knowledge import table
from crossgrade.playbook.check import CONDITIONS
from crossgrade.playbook.positions import SealedText, Spot
from crossgrade.playbook.values import is_template_text
from crossgrade.playbook.vault_format import is_vault
from crossgrade.risks.book import Book, Finding, LintTask, Rule, finding_at, texts

SECRET = Rule(
    "plain-secret",
    "Whoever can read the playbook, its repository or a backup of it has the secret.",
    "Take it from the environment (`lookup('env', 'NAME')`), from `-e @FILE`, or from a vault file.",
    conceals=True,
)
NO_LOG = Rule(
    "no-log-missing",
    "Arguments stand in the plan, the journal and the report, where others read them.",
    "Add `no_log: true` to the task.",
)
JINJA = Rule(
    "jinja-in-condition",
    "A condition is an expression already; braces make it a text that is expanded twice.",
    "Leave the braces out: `when: x == 1`.",
)
UNUSED = Rule(
    "unused-register",
    "A result that nobody reads is often one that somebody forgot to check.",
    "Use it, or remove `register`.",
)
HANDLER = Rule(
    "unknown-handler",
    "The task fails when it has changed something: there is no handler of this name.",
    "Give the handler this name, or this name to its `listen`.",
)
IDLE_HANDLER = Rule(
    "unused-handler",
    "No task notifies it, so it never runs.",
    "Notify it, or remove it.",
)
CACHE = Rule(
    "shared-cache",
    "Generations would share a JIT cache: the new toolkit would load kernels that the old one has compiled.",
    "Remove it. Each generation has caches of its own; `flashinfer_jit` fills one before the window.",
)
LIBRARIES = Rule(
    "library-path",
    "The loader takes these libraries before those of the candidate, whatever the gates have seen in its files.",
    "Remove it: wheels find their libraries by themselves, and cuda_toolkit gives the generation its toolkit.",
)
MODE = Rule(
    "mode-number",
    "Without quotes and a leading zero YAML gives a decimal number, and 644 is the mode 1204.",
    'Write it as text: "0644".',
)
WRITABLE = Rule(
    "world-writable",
    "Every user of the machine can change what the server executes or reads.",
    "Take the write bit of others away.",
)

_NAMES = re.compile(r"\b[A-Za-z_][A-Za-z0-9_]*\b")
_TOLD = re.compile(
    r"password|passwd|secret|api_?key|access_?key|private_?key|(?<!max_)(?<!num_)token(?!s\b|ize)", re.IGNORECASE
)
_PROGRAMS = ("command", "shell", "script", "uri", "template", "copy")


def check(book: Book) -> Iterator[Finding]:
    used = _names_in_templates(book)
    caches = {str(row["variable"]) for row in table("caches")}
    for play in book.playbook.plays:
        yield from _settings(play.vars, play.spot_of("vars"), caches)
        yield from _secrets(play.vars, play.spot_of("vars"), "")
        yield from _handlers(book, play)
    for task in book.tasks:
        yield from _secrets(task.task.arguments, task.task.spot_of("arguments"), task.task.display_name)
        yield from _settings(task.task.arguments, task.task.spot_of("arguments"), caches)
        own = task.task.spot.at("environment")
        if own.path and isinstance(own.node.value, dict) and "environment" in (task.task.spot.node.entries or {}):
            yield from _settings({"environment": own.node.value}, task.task.spot, caches)
            yield from _secrets(own.node.value, own, task.task.display_name)
        yield from _hidden(task)
        yield from _conditions(task)
        yield from _modes(task)
        if task.task.register and task.task.register not in used and not task.task.register.startswith("_"):
            yield task.finding(UNUSED, f"`{task.task.register}` is never read", "register")


def _names_in_templates(book: Book) -> set[str]:
    """Every name in a text of the playbook; more than are read, so that nothing is called unused that is used."""
    found: set[str] = set()
    for play in book.playbook.plays:
        _collect(play.spot.node.value, found)
    for task in book.tasks:  # from other files too
        _collect(task.task.spot.node.value, found)
    return found


def _collect(value: Any, found: set[str]) -> None:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name not in ("register", "name") or is_template_text(item):
                _collect(item, found)
    elif isinstance(value, list):
        for item in value:
            _collect(item, found)
    elif isinstance(value, str):
        found.update(_NAMES.findall(value))


def _secrets(value: Any, spot: Spot, task: str, name: str = "") -> Iterator[Finding]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _secrets(item, spot.at(key), task, str(key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _secrets(item, spot.at(at), task, "")
    elif isinstance(value, str) and value and not (is_template_text(value) or is_vault(value) or _is_sealed(spot)):
        by_name = bool(_TOLD.search(name)) and is_secret(name, value) and not value.startswith(("/", "~", "$", "{"))
        if by_name or looks_secret(value):
            yield finding_at(SECRET, f"`{name}` holds a secret" if name else "this is a secret", spot, task=task)


def _is_sealed(spot: Spot) -> bool:
    """Whether it stands in a file that is encrypted as a whole."""
    return isinstance(spot.source.text, SealedText)


def _hidden(task: LintTask) -> Iterator[Finding]:
    if task.task.no_log is not None or task.module not in _PROGRAMS:
        return
    for text in texts(task.task.arguments):
        for expression in re.findall(r"\{\{(.*?)\}\}", text, re.DOTALL):
            named = next((name for name in _NAMES.findall(expression) if _TOLD.search(name)), None)
            if named and not (task.module in ("template", "copy") and "content" not in task.task.arguments):
                yield task.finding(NO_LOG, f"`{named}` is shown")
                return


def _conditions(task: LintTask) -> Iterator[Finding]:
    entries = task.task.spot.node.entries or {}
    for keyword in CONDITIONS:
        if keyword in entries:
            spot = task.task.spot_of(keyword)
            value = spot.node.value
            for at, item in enumerate(value if isinstance(value, list) else [value]):
                if is_template_text(item):
                    here = spot.at(at) if isinstance(value, list) else spot
                    yield finding_at(
                        JINJA, f"`{keyword}` with braces", here, task=task.task.display_name, begins=task.task.spot
                    )


def _modes(task: LintTask) -> Iterator[Finding]:
    for argument in ("mode", "directory_mode"):
        mode = task.argument(argument)
        spot = task.task.spot_of("arguments", argument)
        if isinstance(mode, int) and not isinstance(mode, bool):
            lines = spot.source.text.splitlines()
            written = lines[spot.place.line - 1][spot.place.column - 1 :] if spot.place.line <= len(lines) else ""
            if not written.startswith("0"):
                yield task.finding(MODE, f"`{argument}: {mode}` is octal {mode:o}", "arguments", argument)
            mode = f"{mode:04o}"
        digits = str(mode) if isinstance(mode, str) and re.fullmatch(r"0?[0-7]{3,4}", mode) else ""
        if digits and int(digits[-1]) & 2 and not (len(digits) >= 4 and digits[-4] == "1"):
            yield task.finding(WRITABLE, f"mode {digits}", "arguments", argument)


def _settings(value: Any, spot: Spot, caches: set[str], inside: bool = False) -> Iterator[Finding]:
    """Environment variables in a mapping called `environment`, however deep it lies."""
    for name, item in value.items() if isinstance(value, Mapping) else ():
        here = spot.at(name)
        if inside and name in caches:
            yield finding_at(CACHE, f"{name} is the same for all generations", here, key=True)
        elif inside and name in ("LD_LIBRARY_PATH", "LD_PRELOAD") and item:
            yield finding_at(LIBRARIES, f"{name} is set for the candidate", here, key=True)
        else:
            yield from _settings(item, here, caches, name == "environment")


def _handlers(book: Book, play: Any) -> Iterator[Finding]:
    handlers = [one for one in book.tasks if one.handler and one.play is play]
    names = {name for one in handlers for name in (one.task.name, *one.task.listen) if name}
    notified: set[str] = set()
    dynamic = any(is_template_text(name) for name in names)
    for task in book.tasks:
        if task.play is not play:
            continue
        for name in task.task.notify:
            notified.add(name)
            dynamic = dynamic or is_template_text(name)
            if name not in names and not is_template_text(name) and not any(map(is_template_text, names)):
                yield task.finding(HANDLER, f'there is no handler "{name}"', "notify", key=True)
    for one in handlers:
        if not dynamic and not {one.task.name, *one.task.listen} & notified:
            yield one.finding(IDLE_HANDLER, f'no task notifies "{one.task.display_name}"')
