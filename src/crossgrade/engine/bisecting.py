"""A bisect: which of the changes from one generation to another brings the loss, by building what lies between.

Each set of changes that `bench.delta_debugging` asks about is built as a candidate is (by the same code, through the
journal, so that a kill leaves nothing half made), must pass `abi_check`, and is measured against the older generation
as the benchmark gate does. Nothing is activated, and nothing is written into a generation that is there. Every answer
is on record as soon as it is known, and the next bisect with the same question goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from crossgrade.bench.delta_debugging import Answer, Changes, Found, minimize, most_tests
from crossgrade.engine.bisect_outlook import Outlook, Question, look
from crossgrade.engine.context import JournaledContext
from crossgrade.engine.events import Events
from crossgrade.engine.interrupt import Interrupted, interruptible, undisturbed
from crossgrade.engine.journal import Journal
from crossgrade.engine.opening import opened_journal
from crossgrade.engine.prepare import Prepared, process_environment
from crossgrade.engine.recovery import empty_temporary, refuse_while_interrupted, settle
from crossgrade.engine.returning import finish_overdue
from crossgrade.engine.run_id import new_run_id
from crossgrade.engine.space import IGNORE, missing_room
from crossgrade.engine.undo import Recovery
from crossgrade.engine.view import Machine
from crossgrade.errors import CrossgradeError, ExitCode
from crossgrade.modules.bisect_build import Judged, UnresolvedError, build, measure, mixed, require_abi
from crossgrade.modules.bisect_parts import Part, closure, mixed_command
from crossgrade.modules.contract import Space
from crossgrade.store.atomic import make_folder
from crossgrade.store.bisects import BisectRecord, Tested, write_bisect
from crossgrade.store.layout import Store
from crossgrade.store.lock import hold

COMMAND = "bisect"
TASK = "bisect"


class _EnoughBuildsError(Exception):
    """As many builds were made as were allowed."""


def bisect(
    prepared: Prepared, question: Question, events: Events, *, anew: bool = False, most_builds: int | None = None
) -> dict[str, Any]:
    """Find the smallest set of changes that brings the loss, and return the result as plain data.

    `most_builds` limits how many generations are built by this call. Raises CrossgradeError, and LockedError while
    another run holds the store.
    """
    request, store = prepared.request, prepared.request.store
    with (
        hold(store.lock_path, f"crossgrade {COMMAND}"),
        interruptible(),
        opened_journal(store, create=True) as journal,
    ):
        finish_overdue(request, journal, events)
        interrupted = journal.unfinished()
        machine = Machine(store, prepared.playbook.directory, False)
        if interrupted is not None and interrupted.command == COMMAND:
            recovery = Recovery(journal, interrupted.id, machine, process_environment(), events)
            settle(recovery, interrupted, store, resume=False)
        refuse_while_interrupted(journal, "a bisect waits until it is settled")
        empty_temporary(store)
        outlook = look(prepared, question, anew=anew)
        run_id = new_run_id()
        make_folder(store.run_folder(run_id), 0o700)
        journal.begin_run(run_id, COMMAND, request.to_journal())
        search = _Search(outlook, machine, journal, run_id, events, outlook.record, most_builds)
        search.ignore_space = bool(request.extra_vars.get(IGNORE))
        try:
            result = search.run()
        except BaseException as error:
            with undisturbed():
                search.recovery.settle()
                empty_temporary(store)
                stopped = isinstance(error, Interrupted)
                code = ExitCode.INTERRUPTED if stopped else ExitCode.NOTHING_CHANGED
                journal.end_run(run_id, "interrupted" if stopped else "failed", int(code), str(error)[:200])
            raise
        journal.end_run(run_id, "done", int(ExitCode.DONE), f"{result['outcome']}: {result['reason']}"[:200])
        return result


@dataclass
class _Search:
    """One search from its first test to its result. `record` grows with each answer."""

    outlook: Outlook
    machine: Machine
    journal: Journal
    run_id: str
    events: Events
    record: BisectRecord
    most_builds: int | None
    builds: int = 0
    tests: int = 0
    ignore_space: bool = False
    failing: list[Changes] = field(default_factory=list)

    @property
    def store(self) -> Store:
        return self.machine.store

    @property
    def recovery(self) -> Recovery:
        return Recovery(self.journal, self.run_id, self.machine, process_environment(), self.events)

    @property
    def everything(self) -> Changes:
        return frozenset(range(len(self.outlook.groups)))

    def run(self) -> dict[str, Any]:
        try:
            result = self._search()
        except _EnoughBuildsError:
            smallest = min(self.failing, key=len, default=self.everything)
            reason = f"{self.builds} generations were built, as many as --builds allows"
            result = self._result("stopped", reason, Found(smallest, smallest, smallest))
        self.record = replace(self.record, result=result)
        write_bisect(self.store, self.record)
        return result

    def _search(self) -> dict[str, Any]:
        whole = self._test(self.everything, "all changes")
        if whole.answer == "passes":
            return self._result("no loss", f"there is no loss to look for: {whole.reason}")
        if whole.answer == "unresolved":
            return self._result("not decided", f"whether there is a loss is not decided: {whole.reason}")
        if not self.everything:
            return self._result("elsewhere", "there is a loss, and nothing that was recorded differs")
        if self.outlook.rebuilt:
            none = self._test(frozenset(), "no change: the older generation, built again")
            if none.answer == "fails":
                return self._result("elsewhere", f"the loss is there without any of the changes: {none.reason}")
        tests = minimize(len(self.outlook.groups), self._close)
        try:
            changes = next(tests)
            while True:
                changes = tests.send(self._test(changes, "").answer)
        except StopIteration as ended:
            found: Found = ended.value
        named = self._titles(found.changes)
        return self._result("found", f"{', '.join(named)}: {self._test(found.closed, '').reason}", found)

    def _close(self, changes: Changes) -> Changes:
        return closure(self.outlook.groups, changes)

    def _titles(self, changes: Changes) -> list[str]:
        return [self.outlook.groups[number].title for number in sorted(changes)]

    def _result(self, outcome: str, reason: str, found: Found | None = None) -> dict[str, Any]:
        question = asdict(self.outlook.question)
        changes = found.changes if found else frozenset[int]()
        return {
            "outcome": outcome,
            "reason": reason,
            "question": question,
            "changes": self._titles(changes),
            "moved_with_them": self._titles(found.closed - changes) if found else [],
            "unseparated": self._titles(found.unseparated) if found else [],
            "inseparable": list(self.outlook.inseparable),
            "all_changes": len(self.everything),
            "tests": len(self.record.tested),
            "builds": self.builds,
            "run": self.run_id,
            "record": str(self.store.root / "bisects" / f"{self.record.key}.json"),
        }

    # ---- one test

    def _test(self, changes: Changes, what: str) -> Judged:
        """The answer for a set of changes: from the record, or by building and measuring."""
        keys = tuple(self.outlook.groups[number].key for number in sorted(changes))
        known = self.record.answer_of(keys)
        if known is None:
            began = time.monotonic()
            self.tests += 1
            title = what or f"{len(changes)} of {len(self.everything)} changes"
            self.events.emit(
                "task_started", task=TASK, name=f"test {self.tests}: {title}", module=COMMAND, handler=False
            )
            judged = self._judge(changes)
            details = {name: value for name, value in asdict(judged).items() if name not in ("answer", "reason")}
            known = Tested(keys, judged.answer, judged.reason, self.run_id, time.monotonic() - began, details)
            self.record = self.record.with_test(known)
            write_bisect(self.store, self.record)
            self._tell(changes, known, recorded=False)
        elif changes not in self.failing or known.answer != "fails":
            self._tell(changes, known, recorded=True)
        if known.answer == "fails" and changes not in self.failing:
            self.failing.append(changes)
        return Judged(_answer(known.answer), known.reason, **known.details)

    def _tell(self, changes: Changes, tested: Tested, *, recorded: bool) -> None:
        told = {**asdict(tested), "changes": self._titles(changes), "recorded": recorded}
        self.events.emit("bisect_test", **told)

    def _judge(self, changes: Changes) -> Judged:
        context = self._context()
        outlook = self.outlook
        groups = [outlook.groups[number] for number in sorted(changes)]
        parts = [part for group in groups for part in group.parts]
        options = {part.name for part in parts if part.kind == "option"}
        command = mixed_command(outlook.measurement.older_command, outlook.command, options)
        built = {number for number, group in enumerate(outlook.groups) if group.built}
        try:
            if changes == self.everything or (built and built <= changes):
                generation = outlook.newer
            elif changes and not built & changes:
                generation = outlook.older
            else:
                number = self._build(parts, context)
                require_abi(number, outlook.abi, context)
                generation = self.store.generation(number)
            return measure(outlook.measurement, outlook.older, generation, command, context)
        except UnresolvedError as error:
            self.recovery.settle()  # a build that failed leaves nothing half made
            return Judged("unresolved", error.reason, error.generation, stage=error.stage)

    def _build(self, parts: Sequence[Part], context: JournaledContext) -> int:
        outlook = self.outlook
        trial = f"bisect {outlook.older.number}..{outlook.newer.number}"
        wanted = mixed(outlook.wanted, *outlook.ingredients, parts, outlook.environment, trial)
        before = set(self.store.numbers())
        if self.most_builds is not None and self.builds >= self.most_builds:
            raise _EnoughBuildsError
        self._require_room()
        try:
            return build(wanted, context)
        finally:
            self.builds += len(set(self.store.numbers()) - before)

    def _require_room(self) -> None:
        """As much as the newer generation takes. Raises CrossgradeError."""
        from crossgrade.store.gc import size_of

        size = size_of(self.store.venv(self.outlook.newer.number))
        lacking = missing_room([Space(self.store.root, size, "one more generation")])
        if lacking and not self.ignore_space:
            raise CrossgradeError(
                lacking, remedy=f"`crossgrade gc` makes room, `-e {IGNORE}=true` goes on anyway. What is known is kept."
            )

    def _context(self) -> JournaledContext:
        view = replace(self.outlook.view, machine=self.machine, printed=[])
        report: Callable[[str], None] = lambda message: self.events.emit("task_progress", task=TASK, message=message)  # noqa: E731
        return JournaledContext(self.run_id, TASK, COMMAND, "python_env", self.journal, view, report)


def _answer(text: str) -> Answer:
    return "fails" if text == "fails" else "passes" if text == "passes" else "unresolved"


def expected(outlook: Outlook) -> Mapping[str, Any]:
    """What a bisect would do, as plain data: for `--dry-run`."""
    count = len(outlook.groups)
    rules = outlook.measurement.rules
    return {
        "question": {**asdict(outlook.question), "allowed_loss": rules.allowed_losses[outlook.question.metric]},
        "groups": [
            {
                "changes": [part.title for part in group.parts],
                "needs": [outlook.groups[number].title for number in sorted(group.needs)],
            }
            for group in outlook.groups
        ],
        "inseparable": list(outlook.inseparable),
        "tests_for_one_cause": most_tests(count) if count > 1 else 0,
        "tests_for_two_causes": most_tests(count, 2) if count > 2 else 0,
        "pairs_each": [rules.minimum_pairs, rules.maximum_pairs],
        "known": len(outlook.record.tested),
    }
