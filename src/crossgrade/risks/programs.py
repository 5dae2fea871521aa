"""Risks of programs that a playbook starts: where a module exists, in place of a transaction, and by a shell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from crossgrade.modules import NAMES
from crossgrade.modules.apt_transaction import driver_part, driver_rules
from crossgrade.playbook.model import walk
from crossgrade.risks.book import Book, Finding, LintTask, Rule

IN_PLACE = Rule(
    "in-place-install",
    "It changes an environment while people work with it, cannot be taken back, and no gate has seen the result.",
    "Name the dists in `python_env: requirements`: a candidate is built beside, judged, and activated by one rename.",
)
EXISTS = Rule(
    "module-exists",
    "A program cannot say in a plan what it would change, and what it changed is not taken back.",
    "Use the module that the message names.",
)
DRIVER = Rule(
    "driver-by-apt",
    "A driver changes the kernel under every process at once, needs a reboot, and cannot be rolled back with a link.",
    "Bring the driver to its version before, on its own day; `preflight` says which one the target needs.",
)
LATEST = Rule(
    "latest",
    "What `latest` is changes from day to day, so two servers, or two runs, get different things.",
    "Name the version.",
)
NO_SHELL = Rule(
    "shell-not-needed",
    "A shell expands and splits what variables hold; without pipes or redirection nothing is gained by it.",
    "Use `command`.",
)
PIPE = Rule(
    "pipe-hides-failure",
    "Of a pipe only the last program's exit code counts: what failed before it goes unseen.",
    "Begin with `set -o pipefail` under `args: {executable: /bin/bash}`, or let `register` and a filter do it.",
)
CHANGED = Rule(
    "changed-when-missing",
    "A program counts as a change whenever it runs, so a second run never says that there is nothing to do.",
    "Give `changed_when` (false for what only reads), or `creates` or `removes`.",
)
PIPED = Rule(
    "download-to-shell",
    "What a server sends at that moment is executed; nobody has seen it, and nothing pins it.",
    "Download it with a checksum, and run the file.",
)

# program → the modules that do its work, the best first
_INSTEAD: dict[str, tuple[str, ...]] = {
    "apt": ("apt",),
    "apt-get": ("apt",),
    "curl": ("get_url", "uri"),
    "wget": ("get_url", "uri"),
    "git": ("git",),
    "systemctl": ("systemd_service", "systemd"),
    "service": ("service", "systemd_service"),
    "cp": ("copy",),
    "mv": ("copy",),
    "rm": ("file",),
    "ln": ("file",),
    "mkdir": ("file",),
    "rmdir": ("file",),
    "touch": ("file",),
    "chmod": ("file",),
    "chown": ("file",),
    "chgrp": ("file",),
    "stat": ("stat",),
    "test": ("stat",),
    "cat": ("slurp",),
    "tar": ("unarchive",),
    "unzip": ("unarchive",),
    "sed": ("replace", "lineinfile"),
    "mktemp": ("tempfile",),
    "find": ("find",),
    "sleep": ("pause", "wait_for"),
    "hostname": ("hostname",),
}
# What these programs do besides has no module: `systemctl show`, `git log`.
_ONLY = {
    "systemctl": {"start", "stop", "restart", "reload", "enable", "disable", "mask", "unmask", "daemon-reload"},
    "git": {"clone", "checkout", "pull", "fetch", "reset"},
    "apt": {"install", "remove", "purge", "update", "upgrade"},
    "apt-get": {"install", "remove", "purge", "update", "upgrade", "dist-upgrade"},
    "sed": {"-i", "--in-place"},
}
_SHELLS = ("sh", "bash", "zsh", "dash")
_NEEDS_SHELL = re.compile(r"[|&;<>()$`\\\"'*?\[\]#~=%!{}\n]")
_PIPE = re.compile(r"(?<!\|)\|(?!\|)")
_TO_SHELL = re.compile(r"\b(?:curl|wget)\b[^|]*\|\s*(?:sudo\s+)?(?:ba|z|da)?sh\b")
_PACKAGES = ("apt", "package", "dnf", "yum", "pip")


def check(book: Book) -> Iterator[Finding]:
    for task in book.tasks:
        if task.module in ("command", "shell", "script", "raw"):
            yield from _program(task)
        if task.module in _PACKAGES:
            yield from _packages(task)


def words_of(task: LintTask) -> list[str]:
    """The words of a command as far as they can be known; of `sh -c TEXT` those of the text."""
    argv = task.argument("argv")
    if isinstance(argv, list | tuple):
        words = [str(word) for word in argv]
    else:
        words = str(task.argument("cmd", "_raw_params", "free_form") or "").split()
    while words and (words[0] in ("sudo", "env", "nohup", "time", "nice") or re.fullmatch(r"[A-Z_]+=.*", words[0])):
        words = words[1:]
    if len(words) > 2 and words[0].rsplit("/", 1)[-1] in _SHELLS and words[1].startswith("-") and "c" in words[1]:
        words = words[2].split() if isinstance(argv, list | tuple) else " ".join(words[2:]).strip("'\"").split()
    return words


def line_of(task: LintTask) -> str:
    argv = task.argument("argv")
    given = task.argument("cmd", "_raw_params", "free_form")
    return " ".join(str(word) for word in argv) if isinstance(argv, list | tuple) else str(given or "")


def _program(task: LintTask) -> Iterator[Finding]:
    words, line = words_of(task), line_of(task)
    program = words[0].rsplit("/", 1)[-1] if words else ""
    by_shell = task.module == "shell" or line.split(" ", 1)[0].rsplit("/", 1)[-1] in _SHELLS
    piped = by_shell and _TO_SHELL.search(line)
    if _installs(program, words):
        yield task.finding(IN_PLACE, f"`{' '.join(words[:4])}` changes an environment in place")
    elif not piped:
        yield from _instead(task, program, words)
    if "install" in words and program in ("apt", "apt-get", "aptitude"):
        yield from _driver(task, words[words.index("install") + 1 :])
    if piped:
        yield task.finding(PIPED, "a download is handed to a shell")
    elif by_shell and _PIPE.search(line) and "pipefail" not in line:
        yield task.finding(PIPE, "a pipe whose first programs may fail unseen")
    elif task.module == "shell" and not _NEEDS_SHELL.search(re.sub(r"\{\{.*?\}\}", "", line)):
        yield task.finding(NO_SHELL, "`shell` for a plain command")
    stated = task.task.changed_when or task.argument("creates") is not None or task.argument("removes") is not None
    if not stated and not task.handler:
        yield task.finding(CHANGED, f"`{program or task.module}` always counts as a change")


def _installs(program: str, words: list[str]) -> bool:
    changing = {"install", "uninstall", "sync", "add", "remove", "develop"}
    if program in ("pip", "pip3", "conda", "mamba", "poetry", "pipx"):
        return bool(changing & set(words[1:3]))
    if program == "uv":
        return "pip" in words and bool(changing & set(words)) and "compile" not in words
    return words[1:3] == ["-m", "pip"] and bool(changing & set(words))


def _instead(task: LintTask, program: str, words: list[str]) -> Iterator[Finding]:
    here = next((name for name in _INSTEAD.get(program, ()) if name in NAMES), None)
    only = _ONLY.get(program)
    if here is None or (only is not None and not only & set(words)):
        return
    if program in ("test", "cat", "find", "stat") and len(words) < 2:
        return
    if program == "systemctl" and _stands_again(task):
        return
    yield task.finding(EXISTS, f"`{program}` where the module `{here}` exists")


def _stands_again(task: LintTask) -> bool:
    """Whether it stops a service that `always` starts, or starts it there: a module's start would be undone."""
    starts = (one for block in task.blocks for one in walk(block.always) if "systemctl" in str(one.arguments))
    return "always" in task.sections or any(starts)


def _packages(task: LintTask) -> Iterator[Finding]:
    if task.argument("state") == "latest":
        yield task.finding(LATEST, f"{task.module} in whatever version there is today", "arguments", "state")
    names = task.argument("name", "pkg", "package", "deb")
    if task.module != "pip":
        yield from _driver(task, names.split(",") if isinstance(names, str) else names)


def _driver(task: LintTask, names: Any) -> Iterator[Finding]:
    rules = driver_rules()
    for name in names if isinstance(names, list | tuple) else []:
        part = driver_part(re.split(r"[=<>]", str(name).strip())[0], rules)
        if part:
            yield task.finding(DRIVER, f"{name} is {part}")
