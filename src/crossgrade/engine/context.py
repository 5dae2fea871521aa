"""What a module applies its change through: every effect is in the journal before it happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade.engine.journal import Journal
from crossgrade.engine.view import TaskView
from crossgrade.gates.verdict import Verdict
from crossgrade.jsontype import JSON
from crossgrade.playbook import secrets
from crossgrade.store.layout import Store

if TYPE_CHECKING:
    from crossgrade.process import Completed


@dataclass(frozen=True)
class JournaledContext:
    """An `ApplyContext` for one task of one run."""

    run_id: str
    task: str
    name: str
    module: str
    journal: Journal
    view: TaskView
    report: Callable[[str], None]
    hidden: bool = False  # `no_log`: the journal then keeps what undoes the step, not what it says

    @property
    def store(self) -> Store:
        return self.view.store

    @property
    def host(self) -> TaskView:
        return self.view

    @property
    def log_directory(self) -> Path:
        return self.store.run_folder(self.run_id)

    @contextmanager
    def step(self, intent: str, undo: Mapping[str, JSON], *, by_hand: Sequence[str] = ()) -> Iterator[None]:
        if self.hidden:
            intent = "hidden by no_log"
        ordinal = self.journal.intend(self.run_id, self.task, self.name, self.module, intent, undo, by_hand)
        yield
        self.journal.complete(self.run_id, ordinal, self.module, self.task)

    def run(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float | None = None,
        input_text: str | None = None,
        log_name: str = "",
        shown: Callable[[str], str] | None = None,
    ) -> Completed:
        from crossgrade.process import run_process

        merged = {**self.view.environment, **(environment or {})}
        log = self.log_directory / log_name if log_name else None
        sealed = log is not None and secrets.any_known()

        def on_line(line: str) -> None:
            if log is not None and sealed:
                with log.open("a", encoding="utf-8", errors="replace") as file:
                    file.write(f"{secrets.masked(line)}\n")
            self._progress_line(line if shown is None else shown(line))

        completed = run_process(
            self.view.command_line(argv, merged),
            env=merged,
            cwd=cwd,
            timeout=timeout,
            input=input_text,
            on_line=on_line,
            log=None if sealed else log,  # its bytes as they come; with secrets about, lines without them
        )
        self.view.remember_failure(completed)
        return completed

    def _progress_line(self, line: str) -> None:
        if line.strip():
            self.report(line.strip()[:200])

    def progress(self, message: str) -> None:
        self.report(message)

    def record_verdict(self, generation: int, key: str, verdict: Verdict) -> None:
        if secrets.any_known():
            findings = tuple(
                replace(
                    each,
                    subject=secrets.masked(each.subject),
                    message=secrets.masked(each.message),
                    evidence=secrets.masked(each.evidence),
                )
                for each in verdict.findings
            )
            reason, figures = secrets.masked(verdict.reason), secrets.masked(verdict.figures)
            verdict = replace(verdict, reason=reason, findings=findings, figures=figures)
        self.store.write_verdict(generation, key, verdict)

    def record_activation(self, previous: int | None, active: int | None) -> None:
        self.journal.record_activation(self.run_id, previous, active)
