"""`bisect`: which of the changes between two generations brings the loss."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from crossgrade.commands.common import agreed, existing_store, guarded, number, people, request_from
from crossgrade.commands.prompting import with_answers
from crossgrade.commands.run_output import RunOutput
from crossgrade.engine.events import Event, Events, Listener
from crossgrade.errors import CrossgradeError, ExitCode, WrongOptionsError
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line

Options = Mapping[str, Any]
SCHEMA = 1
_SHOWN = 6


def bisect_command(options: Options) -> int:
    """Exit code 0 when the cause was found or there is no loss, 2 when neither could be said."""
    return guarded(lambda: _bisect(options))


def _bisect(options: Options) -> int:
    from crossgrade.engine.bisect_outlook import Question, look
    from crossgrade.engine.bisecting import bisect, expected
    from crossgrade.engine.prepare import prepare

    request = request_from(options, "bisect")
    ends = [number(name, options[key]) for name, key in (("from", "from_"), ("to", "to"))]
    if ends[0] is None or ends[1] is None:
        raise WrongOptionsError("bisect needs --from N and --to N", remedy="`crossgrade status` lists the generations.")
    existing_store(request)
    question = Question(ends[0], ends[1], options["metric"], share(options["allowed_loss"]), options["load"])
    most = number("builds", options["builds"])
    prepared = prepare(request)
    if prepared.remote_hosts:
        raise CrossgradeError(
            "bisect works on the machine whose store it is", remedy="Log in there, and run it with `-i localhost,`."
        )
    prepared = with_answers(prepared)
    outlook = expected(look(prepared, question, anew=options["anew"]))
    terminal = Terminal(people(options))
    if options["dry_run"]:
        if options["json"]:
            sys.stdout.write(json.dumps({"schema": SCHEMA, **outlook}) + "\n")
        terminal.write(_outlook_lines(outlook))
        return ExitCode.DONE
    terminal.write(_outlook_lines(outlook))
    if not agreed(options, f"Build and measure about {outlook['tests_for_one_cause']} generations?"):
        raise CrossgradeError("not confirmed", remedy="Nothing was changed.")
    output = RunOutput(options)
    told: Listener = lambda event: output.terminal.write(_test_lines(event)) if event.kind == "bisect_test" else None  # noqa: E731
    events = Events("localhost", (*output.listeners, told))
    try:
        result = bisect(prepared, question, events, anew=options["anew"], most_builds=most)
        events.emit("bisect_ended", **result)
        output.terminal.close()
        output.terminal.write(_result_lines(result))
    finally:
        output.close()
    return ExitCode.DONE if result["outcome"] in ("found", "no loss") else ExitCode.FAILED


def share(text: str) -> float | None:
    """The share of --allowed-loss, None where it was not given. Raises WrongOptionsError."""
    if not text:
        return None
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise WrongOptionsError(f"--allowed-loss goes from 0 to less than 1, not {text}")
    return share


def _outlook_lines(outlook: Mapping[str, Any]) -> Iterator[Line]:
    question, groups = outlook["question"], outlook["groups"]
    changes = sum(len(group["changes"]) for group in groups)
    yield Line(
        f"from generation {question['older']} to {question['newer']}: {changes} changes, {len(groups)} of them can be "
        f"tried apart" + ("" if changes == len(groups) else " or move together"),
        "heading",
    )
    for group in groups:
        yield Line(f"  {', '.join(group['changes'])}")
        if group["needs"]:
            yield Line(f"      needs {', '.join(group['needs'])}", "faint")
    for words in outlook["inseparable"]:
        yield Line(f"  cannot be tried apart: {words}", "warning")
    low, high = outlook["pairs_each"]
    yield Line(
        f"builds: at most {outlook['tests_for_one_cause']} if one of them is the cause, "
        f"{outlook['tests_for_two_causes']} if two are, more where sets do not resolve; each {low} to {high} pairs of "
        f"launches; {question['metric']} may lose {100 * question['allowed_loss']:g}%"
    )
    if outlook["known"]:
        yield Line(f"{outlook['known']} answers are on record already")


def _test_lines(event: Event) -> Iterator[Line]:
    data = event.data
    changes = list(data["changes"])
    shown = ", ".join(changes[:_SHOWN]) + (f" and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else "")
    style = {"fails": "failed", "passes": "ok"}.get(data["answer"], "warning")
    known = " (on record)" if data["recorded"] else ""
    yield Line(f"{data['answer']}{known}: {shown or 'no change'}", style)
    generation = data["details"].get("generation")
    where = f"generation {generation}: " if generation is not None else ""
    yield Line(f"    {where}{data['reason']}", "faint")


def _result_lines(result: Mapping[str, Any]) -> Iterator[Line]:
    if result["outcome"] == "found":
        yield Line(f"\nthe loss comes with {', '.join(result['changes'])}", "heading")
    yield Line(
        f"{result['outcome']}: {result['reason']}", "ok" if result["outcome"] in ("found", "no loss") else "warning"
    )
    if result["outcome"] == "stopped":
        yield Line(f"the smallest set that is known to lose: {', '.join(result['changes'])}")
    for title in result["moved_with_them"]:
        yield Line(f"  moved with them, as they need it: {title}")
    if result["outcome"] == "found":
        for title in result["unseparated"]:
            yield Line(f"  could not be separated: {title}: without it the rest could not be tested", "warning")
    for words in result["inseparable"]:
        yield Line(f"  was not tried apart: {words}", "warning")
    yield Line(
        f"{result['tests']} sets tested, {result['builds']} generations built now; `crossgrade gc` removes them",
        "faint",
    )
    yield Line(f"record: {result['record']}", "faint")
