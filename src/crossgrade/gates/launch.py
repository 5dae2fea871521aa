"""The launch gate: does the new version's own argument parser take the server's launch line?

`ask_parser` has the parser asked in a process of the environment's own Python, `read_parser` takes the options from its
source files where that cannot be; both give an `Examination`, which `judge_launch` weighs. That one is pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from crossgrade.facts.launch_line import Group, LaunchLine, Translation, row_for
from crossgrade.gates.verdict import Finding, Level, Verdict, counted, joined
from crossgrade.jsontype import JSON
from crossgrade.knowledge import Row, table

GATE = "launch"
OUTPUT_LINES = 20  # of an import that failed, kept as evidence
_ABOUT_AN_OPTION = re.compile(r"^argument [^:]+: ")


@dataclass(frozen=True)
class Asked:
    """What the parser says of one group by itself. `error` is None where it takes it; no text holds a secret."""

    group: Group
    error: str | None = None
    left_over: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    in_file: bool = False


@dataclass(frozen=True)
class Examination:
    """What a parser says of a launch line.

    `how` says whether it was asked itself, or its options were read from source. `problem` is why that could not be
    done, with `output` in evidence. `options` are the names that it has, each with what its help says of being
    deprecated. `together` is what it has against the whole line, `said` are warnings about environment variables.
    `nameless` counts options whose names only running it shows.
    """

    how: Literal["asked", "read"]
    options: Mapping[str, str]
    asked: tuple[Asked, ...] = ()
    together: str | None = None
    file_error: str | None = None
    said: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    nameless: int = 0
    seconds: float = 0.0
    problem: str = ""
    output: tuple[str, ...] = ()


def parser_row(engine: str) -> Row | None:
    """Where the parser of a server is; None for one that is not known."""
    return next((row for row in table("launch_parsers") if row["engine"] == engine), None)


# ---- asking


def for_the_parser(line: LaunchLine, row: Row) -> tuple[tuple[Group, ...], str, str]:
    """The groups that reach the parser, the path after ``--config``, and why another parser counts ("" normally).

    A console script takes its own options off, and a model without an option before it is `--model-path`.
    """
    groups = list(line.groups)
    if line.script and groups and not groups[0].option:
        first, *rest = groups[0].words
        groups[0:1] = [Group(("--model-path", first)), *([Group(tuple(rest))] if rest else [])]
    dispatch, others = _list(row.get("dispatch")), _list(row.get("other_parser"))
    config, other = "", ""
    kept: list[Group] = []
    for group in groups:
        if line.script and group.option in dispatch:
            other = next((f"{group.option} {value}" for value in group.values if value in others), other)
        elif group.option == "--config" and len(group.words) == 2:
            config = group.words[1]
        else:
            kept.append(group)
    return tuple(kept), config, other


def filled_in(group: Group) -> list[str]:
    """The words of a group for the parser: an address for ``{host}``, a port, and no secret."""
    return [word.replace("{host}", "127.0.0.1").replace("{port}", "30000") for word in group.concealed().words]


def ask_parser(
    python: Path,
    row: Row,
    groups: Sequence[Group],
    *,
    file: str,
    folder: Path,
    environment: Mapping[str, str],
    timeout: float,
) -> Examination:
    """Ask the server's own parser, in a process of `python`; it sees no GPU, and its home is `folder`, which is empty.

    `file` is a configuration file, "" for none, whose secrets were replaced. `environment` is the whole environment.
    Raises StartError when `python` cannot be started.
    """
    import secrets
    from importlib import resources

    from crossgrade.process import run_process

    word = f"crossgrade-{secrets.token_hex(8)}:"
    source = resources.files("crossgrade.gates").joinpath("launch_question.py").read_text(encoding="utf-8")
    question = {
        **{name: row[name] for name in ("module", "owner", "method", "mergers")},
        "prog": f"{row['engine']} server",
        "file": file,
        "groups": [filled_in(group) for group in groups],
    }
    completed = run_process(
        [str(python), "-B", "-X", "faulthandler", "-c", source, word],
        env={
            **environment, "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": "",
            "HOME": str(folder), "XDG_CACHE_HOME": str(folder), "TMPDIR": str(folder),
        },
        cwd=folder,
        timeout=timeout,
        input=json.dumps(question),
    )  # fmt: skip
    printed, found, rest = completed.stderr.rpartition(f"\n{word}")
    if not found:
        what = f"the process ended while {row['module']} was imported ({completed.outcome()})"
        return Examination("asked", {}, problem=what, output=_last(completed.stdout + "\n" + completed.stderr))
    answer = json.loads(rest.partition("\n")[0])
    if "exception" in answer:
        problem = f"importing {row['module']}: {answer['last_line']}"
        return Examination("asked", {}, problem=problem, output=_last(f"{printed}\n{answer['traceback']}"))
    begins = tuple(_list(row["variables"]))
    own = [name for name in environment if name.startswith(begins)]
    answer["said"] = [text for text in answer["said"] if any(name in text for name in own)]
    return examination("asked", answer, groups)


def read_parser(site: Path, row: Row, groups: Sequence[Group]) -> Examination:
    """The same from the source files below `site` (site-packages); nothing of them is executed."""
    from crossgrade.gates.launch_question import examine
    from crossgrade.inspect.launch_options import parser_of, read_options

    try:
        read = read_options(site, _list(row["sources"]), _list(row["constants"]))
        if not read.options:
            raise ValueError("no options are declared in it in a way that is known")
    except (OSError, SyntaxError, ValueError) as error:
        return Examination("read", {}, problem=f"the source of {row['module']} cannot be read: {error}")
    answer = examine(parser_of(read.options), [filled_in(group) for group in groups])
    found = examination("read", {**answer, "said": []}, groups)
    deprecated = {name: option.deprecated for option in read.options for name in option.names}
    return replace(found, options={**found.options, **deprecated}, unread=read.unread, nameless=read.nameless)


def examination(how: Literal["asked", "read"], answer: Mapping[str, Any], groups: Sequence[Group]) -> Examination:
    """What `launch_question` answered, as data; the groups of a configuration file come first. Pure."""
    from_file = [Group(tuple(map(str, words))) for words in answer.get("file_groups", [])]
    asked = [
        Asked(group, each["error"], tuple(each["left_over"]), tuple(each["said"]), in_file=number < len(from_file))
        for number, (group, each) in enumerate(zip([*from_file, *groups], answer["answers"], strict=True))
    ]
    return Examination(
        how,
        {name: str(each["deprecated"]) for each in answer["options"] for name in each["names"]},
        tuple(asked),
        answer["together"],
        answer.get("file_error"),
        tuple(dict.fromkeys(answer["said"])),
        seconds=float(answer.get("seconds", 0.0)),
    )


# ---- judging


@dataclass(frozen=True)
class LaunchQuestion:
    """What is judged: a server's name and version, what was translated for it, and findings from elsewhere (its unit).

    `translated` says whether the translation was made; else it is only advice. `config` is the line's configuration
    file.
    """

    engine: str
    version: str
    translation: Translation
    translated: bool = True
    config: str = ""
    more: tuple[Finding, ...] = ()


def judge_launch(question: LaunchQuestion, seen: Examination) -> Verdict:
    """Failed when the parser refuses something; `not run` when it could not be asked and its source shows no fault."""
    findings = [*_of_translation(question), *_of_groups(question, seen), *_of_the_whole(question, seen), *question.more]
    whose = f"{question.engine} {question.version}".strip()
    figures: dict[str, JSON] = {
        "engine": question.engine,
        "version": question.version,
        "how": seen.how,
        "options": len(seen.asked),
        "seconds": round(seen.seconds, 3),
        "translated": [str(each) for each in question.translation.rewritten] if question.translated else [],
    }
    failed = [finding for finding in findings if finding.level == "failure"]
    if failed:
        reason = failed[0].message if len(failed) == 1 else f"{failed[0].message} (and {len(failed) - 1} more)"
        return Verdict(GATE, "failed", reason, tuple(findings), figures)
    if seen.problem:
        evidence: dict[str, JSON] = {"output": list(seen.output)}
        findings.append(Finding("warning", "parser", seen.problem, evidence))
        return Verdict(
            GATE, "not run", f"{whose}'s own parser cannot be asked: {seen.problem}", tuple(findings), figures
        )
    how = "own parser takes" if seen.how == "asked" else "source, read and not executed, declares"
    found = sum(any(name.startswith(each.group.option) for name in seen.options) for each in seen.asked)
    how_many = f"{'all' if found > 1 else 'the'} " if found == len(seen.asked) else f"{found} of "
    reason = f"{whose}'s {how} {how_many}{counted(len(seen.asked), 'option')}"
    if question.translated and question.translation.rewritten:
        reason += f", {len(question.translation.rewritten)} of them translated"
    return Verdict(GATE, "passed", reason, tuple(findings), figures)


def _of_translation(question: LaunchQuestion) -> Iterator[Finding]:
    for each in question.translation.rewritten:
        message = f"{each.option} is written as {' '.join(each.after)}" if each.after else f"{each.option} is left out"
        if not question.translated:
            message = f"{each.option} would be {' '.join(each.after)}" if each.after else f"{each.option} can go"
            message += " (`translate: true` does it)"
        evidence: dict[str, JSON] = {"before": list(each.before), "after": list(each.after), "source": each.source}
        why = f": {each.why}" if each.why else ""
        yield Finding("note", each.option, message + why, evidence)


def _of_groups(question: LaunchQuestion, seen: Examination) -> Iterator[Finding]:
    advice = dict(question.translation.advice)
    for each in seen.asked:
        shown = each.group.concealed()
        evidence: dict[str, JSON] = {"words": list(shown.words), "how": seen.how}
        place = f" (in {question.config})" if each.in_file else ""
        for level, message in _of_group(question, seen, each, advice.get(each.group.option, "")):
            yield Finding(level, shown.option or "words without an option", message + place, evidence)


def _of_group(question: LaunchQuestion, seen: Examination, each: Asked, advice: str) -> Iterator[tuple[Level, str]]:
    option, whose = each.group.option, f"{question.engine} {question.version}".strip()
    said = _ABOUT_AN_OPTION.sub("", each.error or "")
    if not option:
        yield "failure", f"{joined(each.group.concealed().words, 3)}: no option takes this"
        return
    if option not in seen.options:
        longer = [name for name in seen.options if option.startswith("--") and name.startswith(option)]
        known = _row_of(question, each) or (advice and {"advice": advice})
        if known:
            taken = f", and argparse takes it for {longer[0]}" if longer and each.error is None else ""
            yield "failure", f"{option} is no option of {whose} any more{taken}: {_instead(known)}"
        elif not longer and seen.nameless:
            yield "warning", f"{option} was not found in the source of {whose}, where not all options could be read"
        elif not longer:
            yield "failure", f"{option} is no option of {whose}{_alike(option, seen.options)}"
        elif each.error is not None:
            yield "failure", f"{option}: {said}"
        else:
            yield "note", f"{option} is short for {longer[0]}: a newer version may have another option that begins so"
        return
    if each.error is not None and each.group.secret:
        yield "note", f"{option}: its value is a secret, which was not shown to the parser; it is not checked"
    elif each.error is not None:
        instead = _row_of(question, each)
        yield "failure", f"{option}: {said}" + (f": {_instead(instead)}" if instead else "")
    elif each.left_over:
        left = joined(each.group.concealed().words[-len(each.left_over) :], 3)
        yield "failure", f"{option}: nothing takes what follows it: {left}"
    if deprecated := seen.options[option]:
        yield "warning", f"{option} is deprecated: {next(iter(each.said), deprecated)}"


def _of_the_whole(question: LaunchQuestion, seen: Examination) -> Iterator[Finding]:
    if seen.file_error:
        yield Finding("failure", "--config", f"{question.config} cannot be used: {seen.file_error}")
    alone = [each for each in seen.asked if each.error is not None and not each.group.secret]
    if seen.together and not alone and not seen.file_error:
        yield Finding("failure", "the whole line", seen.together)
    for text in seen.said:
        yield Finding("warning", "environment", text)
    for text in seen.unread:
        yield Finding("note", "source", f"{text}: not known without running it, so any value passes")


def _row_of(question: LaunchQuestion, each: Asked) -> Row | None:
    return row_for(question.engine, each.group, question.version)


def _instead(row: Mapping[str, JSON]) -> str:
    becomes, values = row.get("becomes"), row.get("values")
    words = f"use {' '.join(map(str, becomes)).replace('{values}', '...')}" if isinstance(becomes, list) else ""
    if isinstance(values, dict):
        words = ", ".join(f"{old} is {new} now" for old, new in values.items())
    if row.get("drop"):
        words = "leave it out"
    return "; ".join(text for text in (words, str(row.get("advice", ""))) if text)


def _alike(option: str, options: Mapping[str, str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(option, [*options], 2, 0.8)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _last(text: str) -> tuple[str, ...]:
    return tuple([line for line in text.splitlines() if line.strip()][-OUTPUT_LINES:])


def _list(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []
