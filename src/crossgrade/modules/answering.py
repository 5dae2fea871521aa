"""Answers of one server for the gate `accuracy`: from the record of its generation, or asked of the server itself.

Answers may be private. They lie in files of mode 0600, in a folder of mode 0700 beside the generation's verdicts,
under a key of what was asked, how the server is started, and the generation's manifest: files that changed are asked
anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossgrade.errors import StoreError, TaskError
from crossgrade.modules import gate
from crossgrade.modules.contract import ApplyContext
from crossgrade.modules.server import fresh_log

if TYPE_CHECKING:
    from crossgrade.bench.asking import Questionnaire
    from crossgrade.bench.given_answers import AnswerSheet, ToolScore
    from crossgrade.bench.score_tools import ToolCall
    from crossgrade.bench.server_process import RunningServer, ServerSpec
    from crossgrade.store.layout import Store

TOOL_SECONDS = 7200.0


class ToolFailedError(TaskError):
    """An evaluation tool gave no score: that says nothing about the server."""


@dataclass(frozen=True)
class Side:
    """A server to be asked. `key` is that of its record; `tool` None asks no evaluation tool."""

    name: str
    candidate: gate.Candidate
    spec: ServerSpec
    key: str
    tool: ToolCall | None = None


def record_path(store: Store, side: Side) -> Path | None:
    """Where a side's answers are kept; None for what is no generation."""
    number = side.candidate.number
    return None if number is None else store.folder(number) / "answers" / f"{side.key}.json"


def recorded_answers(side: Side, context: ApplyContext) -> AnswerSheet | None:
    """The answers on record, None where there are none. A damaged record is said and not used."""
    from crossgrade.bench.given_answers import AnswerSheet
    from crossgrade.store.layout import read_record

    path = record_path(context.store, side)
    if path is None or not path.exists():
        return None
    try:
        return AnswerSheet.from_json(read_record(path))
    except (StoreError, KeyError, TypeError, ValueError, AttributeError) as error:
        context.progress(f"the answers on record for {side.candidate.title} cannot be used ({error}): asking anew")
        return None


def record_answers(side: Side, sheet: AnswerSheet, context: ApplyContext) -> None:
    """Keep a side's answers, unless one of them failed: an error is no answer to keep."""
    from crossgrade.store.atomic import make_folder, write_json

    path = record_path(context.store, side)
    if path is None or any(answer.error for answer in sheet.all_answers()):
        return
    make_folder(path.parent, 0o700)
    write_json(path, sheet.to_json())


def live_answers(
    side: Side, questionnaire: Questionnaire, references: Sequence[str] | None, context: ApplyContext
) -> AnswerSheet:
    """Start the server, ask it, stop it, keep what it said.

    Raises TaskError when it does not start, and ToolFailedError when an evaluation tool gave no score.
    """
    from crossgrade.bench.asking import ask
    from crossgrade.bench.server_process import launch

    def tell(message: str) -> None:
        context.progress(f"the {side.name} server: {message}")

    tell("starting")
    with launch(side.spec, fresh_log(context.log_directory, f"accuracy-{side.name}")) as server:
        tell(f"healthy after {server.start_seconds:.1f} s")
        sheet = ask(server.base_url, questionnaire, references, tell)
        if side.tool is not None:
            tell(f"running {side.tool.tool}")
            sheet = replace(sheet, tool=run_tool(side, side.tool, server, context))
    record_answers(side, sheet, context)
    return sheet


def run_tool(side: Side, call: ToolCall, server: RunningServer, context: ApplyContext) -> ToolScore:
    """Run an evaluation tool against the server, in a folder of its own. Raises ToolFailedError."""
    from urllib.parse import urlsplit

    from crossgrade.bench.score_tools import GSM8K_QUESTIONS, ToolOutputError, read_tool_output
    from crossgrade.process import StartError

    port = urlsplit(server.base_url).port or 80
    with private_folder(context) as folder:
        try:
            done = context.run(
                call.arguments(port, str(folder)),
                environment=side.spec.environment,
                cwd=folder,
                timeout=TOOL_SECONDS,
                log_name=f"accuracy-{call.tool}-{side.name}.log",
            )
        except StartError as error:
            raise ToolFailedError(f"{call.tool}: {error.message}") from error
    if not done.succeeded:
        said = [line.strip() for line in (*done.stdout.splitlines(), *done.stderr.splitlines()) if line.strip()]
        raise ToolFailedError(f"{call.tool}: {done.outcome()}: {said[-1][:200] if said else 'it said nothing'}")
    in_file = count_lines(Path(call.data_file)) if call.data_file else GSM8K_QUESTIONS
    try:
        return read_tool_output(call, done.stdout.splitlines(), in_file)
    except ToolOutputError as error:
        raise ToolFailedError(f"{call.tool}: {error}") from error


@contextlib.contextmanager
def private_folder(context: ApplyContext) -> Iterator[Path]:
    """A folder for what a tool writes (answers among it), removed afterwards."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="accuracy-", dir=context.log_directory) as folder:
        yield Path(folder)


def count_lines(path: Path) -> int:
    return sum(bool(line.strip()) for line in path.read_text(encoding="utf-8").splitlines())


def keep_evidence(
    header: Mapping[str, Any], sheets: Mapping[str, AnswerSheet], context: ApplyContext, *, whole: bool
) -> Path:
    """A file of the run with a line for each answer: whole, or only its digest. Returns where it is; mode 0600."""
    from crossgrade.store.atomic import write_file

    lines: list[Mapping[str, Any]] = [header]
    for side, sheet in sheets.items():
        for one in sheet.passes:
            place = {"side": side, "concurrency": one.concurrency, "pass": one.number}
            lines += [
                {**place, "prompt": number, **described(answer, whole=whole)}
                for number, answer in enumerate(one.answers, 1)
            ]
        lines += [
            {"side": side, "question": number, **described(answer, whole=whole)}
            for number, answer in enumerate(sheet.task, 1)
        ]
    path = fresh_log(context.log_directory, "accuracy", ".jsonl")
    write_file(path, "".join(json.dumps(line) + "\n" for line in lines).encode())
    return path


def described(answer: Any, *, whole: bool) -> dict[str, Any]:
    if whole:
        return dict(answer.to_json())
    return {
        "sha256": hashlib.sha256(answer.text.encode("utf-8", "surrogatepass")).hexdigest(),
        "characters": len(answer.text),
        "tokens": len(answer.tokens),
        "finish_reason": answer.finish_reason,
        "error": answer.error,
    }
