"""The same playbook run by real ansible-core and by crossgrade, and what came of it in one shape.

    with BothWays(folder) as both:
        theirs, ours = both.run(Case(...))
        differing(ours, theirs)      # the names of what is not the same

Both sides run in folders of their own with the same files, on localhost, through `forking_server.py`. The program `say`
is on PATH: it writes its words to a log and to stdout.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.commands import Answer
from tests.support.two_programs import Asked, WarmPrograms

HERE = Path(__file__).parent
SECONDS = 120.0  # for one playbook on one side

_COUNTS = ("ok", "changed", "unreachable", "failed", "skipped", "rescued", "ignored")


@dataclass(frozen=True)
class Case:
    """One playbook and the files around it. `options` are given to both programs as they are."""

    name: str
    playbook: str
    about: str = ""
    options: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    `recap` has Ansible's counts for each host; `steps` the tasks and handlers in order for each host, as
    `(name, status)` with `name => item` for an item of a loop; `said` what `debug` printed; `log` what `say` was told;
    `tree` what lies in `out` afterwards. `begun` is False where a playbook was refused before its first play.
    """

    code: int | None
    recap: Mapping[str, Mapping[str, int]]
    steps: Mapping[str, Sequence[tuple[str, str]]]
    said: Mapping[str, Sequence[Any]]
    log: Sequence[str]
    tree: Mapping[str, str]
    begun: bool = True
    output: str = field(default="", compare=False)


FIELDS = tuple(one.name for one in fields(Outcome) if one.compare)


def differing(ours: Outcome, theirs: Outcome) -> list[str]:
    """The fields that are not the same.

    What a failed play changed is taken back by crossgrade, so then `out` has to be as empty as it was; what ran through
    `command` stays. A play that crossgrade does not begin differs in `begun` alone when it fails in Ansible, too.
    """
    if theirs.begun and theirs.code and ours.code in (1, 4) and not (ours.begun or ours.tree or ours.log):
        return ["begun"]
    found = [name for name in FIELDS if name != "tree" and getattr(ours, name) != getattr(theirs, name)]
    expected = theirs.tree if ours.code == 0 else {}
    return [*found, *(["tree"] if ours.tree != expected else [])]


def described(ours: Outcome, theirs: Outcome, names: Sequence[str]) -> str:
    """What differs, for people."""
    lines = [f"{name}:\n  ansible    {getattr(theirs, name)}\n  crossgrade {getattr(ours, name)}" for name in names]
    return "\n".join([*lines, "crossgrade said:", ours.output[-3000:], "ansible said:", theirs.output[-1500:]])


# ---- reading what the two programs said


def _records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def _step(events: dict[str, list[tuple[str, str]]], record: Mapping[str, Any], status: str, *, handler: bool) -> None:
    item = f" => {record['item']}" if record["item"] not in (None, "") else ""
    name = f"{'handler ' if handler else ''}{record['name']}{item}"
    events.setdefault(record["host"], []).append((name, status))


_NOT_SAID = {
    *("changed", "failed", "skipped", "warnings", "deprecations"),
    *("ansible_loop_var", "ansible_index_var", "ansible_loop"),
}


def _without(values: Mapping[str, Any]) -> dict[str, Any]:
    loop = {values.get("ansible_loop_var"), values.get("ansible_index_var")}
    return {key: value for key, value in values.items() if key not in _NOT_SAID | loop}


_NOT_COMPARED = ("include_tasks", "import_tasks", "include_role", "import_role", "meta", "import_playbook")


def _is_step(record: Mapping[str, Any]) -> bool:
    """Includes are told as different events; that they happened shows in what they include."""
    return str(record["module"]).rpartition(".")[2] not in _NOT_COMPARED


def read_ansible(text: str, errors: str, code: int | None) -> Outcome:
    recap: dict[str, dict[str, int]] = {}
    steps: dict[str, list[tuple[str, str]]] = {}
    said: dict[str, list[Any]] = {}
    handler = False
    for record in _records(text):
        if record["event"] == "task":
            handler = record["handler"]
        elif record["event"] == "recap":
            counts = {**record, "failed": record["failures"]}
            recap[record["host"]] = {name: counts[name] for name in _COUNTS}
        elif record["event"] == "result" and _is_step(record):
            status = str(record["status"])
            if not status.startswith("all "):
                _step(steps, record, status, handler=handler)
                if str(record["module"]).endswith("debug") and status in ("ok", "changed"):
                    said.setdefault(record["host"], []).append(_without(record["values"]))
    begun = any(record["event"] == "play" for record in _records(text))
    return Outcome(code, recap, steps, said, (), {}, begun, output=text[-3000:] + errors)


def read_crossgrade(text: str, errors: str, code: int | None) -> Outcome:
    recap: dict[str, dict[str, int]] = {}
    steps: dict[str, list[tuple[str, str]]] = {}
    said: dict[str, list[Any]] = {}
    records = _records(text)
    handler = False
    for record in records:
        if record["event"] == "task_started":
            handler = bool(record.get("handler"))
        elif record["event"] == "recap":
            counts = {name: record[name] for name in _COUNTS}
            if any(counts.values()):  # Ansible leaves out a host that no task has come to
                recap[record["host"]] = counts
        elif record["event"] == "task_result" and _is_step(record):
            status = str(record["status"])
            if status == "ignored" and record["item"]:
                status = "failed"  # Ansible says of the loop that it is ignored, not of the item
            _step(steps, record, status, handler=handler)
            if str(record["module"]).endswith("debug") and status in ("ok", "changed"):
                said.setdefault(record["host"], []).append(_without(record["values"]))
    planned = [record["plan"] for record in records if record["event"] == "plan"]
    if planned and not recap:
        for task in planned[-1]["tasks"]:
            if _is_step(task):
                _step(
                    steps,
                    task,
                    {"change": "changed", "fails": "failed"}.get(task["action"], task["action"]),
                    handler=False,
                )
    begun = any(record["event"] == "run_started" for record in records) or bool(planned and not code)
    return Outcome(code, recap, steps, said, (), {}, begun, output=errors)


def tree_of(folder: Path) -> dict[str, str]:
    """Every entry below a folder with its kind, mode and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            text = f"link {path.readlink()}"
        elif stat.S_ISDIR(mode):
            text = f"directory {stat.S_IMODE(mode):04o}"
        else:
            text = f"file {stat.S_IMODE(mode):04o} {path.read_bytes()!r}"
        found[str(path.relative_to(folder))] = text
    return found


# ---- running


class BothWays:
    """The two programs, warm, and folders for their runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("home", "ansible", "runs", "programs"):
            (folder / name).mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
        own = {"HOME": str(folder / "home"), "CONFORMANCE": "from the environment", "NO_COLOR": "1"}
        self._environment = {**kept, **own}
        self._programs = WarmPrograms(folder / "programs", {**own, **self._ansible_settings()}, SECONDS)

    def _ansible_settings(self) -> dict[str, str]:
        return {
            "ANSIBLE_HOME": str(self.folder / "ansible"),
            "ANSIBLE_LOCAL_TEMP": str(self.folder / "ansible" / "tmp"),
            "ANSIBLE_REMOTE_TEMP": str(self.folder / "ansible" / "remote"),
            "ANSIBLE_PYTHON_INTERPRETER": str(self.folder / "programs" / "python"),
            "ANSIBLE_STDOUT_CALLBACK": "conformance_events",
            "ANSIBLE_CALLBACK_PLUGINS": str(HERE / "ansible_callback"),
            "ANSIBLE_LOCALHOST_WARNING": "0",
            "ANSIBLE_INVENTORY_UNPARSED_WARNING": "0",
            "ANSIBLE_DEPRECATION_WARNINGS": "0",
            "ANSIBLE_NOCOLOR": "1",
        }

    def __enter__(self) -> BothWays:
        self._programs.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._programs.__exit__(kind, error, trace)

    def run(self, case: Case) -> tuple[Outcome, Outcome]:
        """Run a case by both at once. Returns Ansible's outcome, then crossgrade's."""
        base = self.folder / "runs" / case.name
        local = () if "-i" in case.options else ("-i", "localhost,")
        folders = [self._lay_out(base / side, case) for side in ("ansible", "crossgrade")]
        theirs, ours = (
            Asked(
                [*words, "-e", f"out={folder / 'out'}", *case.options],
                folder,
                {**self._environment, "PATH": f"{folder.parent / 'bin'}:{os.environ['PATH']}"},
            )
            for folder, words in zip(
                folders,
                (
                    ("play.yml", *local, "-c", "local"),
                    ("upgrade", "--playbook", "play.yml", "--root", str(base / "crossgrade" / "root"), "-y", "--json"),
                ),
                strict=True,
            )
        )
        answers = self._programs.both(theirs, ours)
        found = [
            self._outcome(folder, answer, reader)
            for folder, answer, reader in zip(folders, answers, (read_ansible, read_crossgrade), strict=True)
        ]
        shutil.rmtree(base, ignore_errors=True)
        return found[0], found[1]

    def _lay_out(self, side: Path, case: Case) -> Path:
        folder = side / "work"
        (folder / "out").mkdir(parents=True)
        (side / "bin").mkdir()
        say = side / "bin" / "say"
        say.write_text(f'#!/bin/sh\necho "$*" >> "{side}/log"\necho "$*"\n')
        say.chmod(0o755)
        for name, text in {"play.yml": case.playbook, **case.files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                path.chmod(0o755)
        return folder

    def _outcome(self, folder: Path, answer: Answer, reader: Any) -> Outcome:
        def neutral(text: str) -> str:
            return text.replace(str(folder), "WORK").replace(str(folder.parent), "SIDE")

        found: Outcome = reader(neutral(answer.stdout), neutral(answer.stderr), answer.code)
        log = folder.parent / "log"
        said = neutral(log.read_text(encoding="utf-8", errors="replace")).splitlines() if log.exists() else []
        tree = {name: text.replace(str(folder), "WORK") for name, text in tree_of(folder / "out").items()}
        return Outcome(answer.code, found.recap, found.steps, found.said, said, tree, found.begun, found.output)


class Batch:
    """Many cases at once, each waited for by its own test."""

    def __init__(self, both: BothWays, cases: Sequence[Case]) -> None:
        self._pool = ThreadPoolExecutor(max_workers=max(2, os.cpu_count() or 2))
        self._found = {case.name: self._pool.submit(both.run, case) for case in cases}

    def outcome(self, name: str) -> tuple[Outcome, Outcome]:
        return self._found[name].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
