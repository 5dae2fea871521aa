"""accuracy: does the candidate's server answer as the working one does?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from crossgrade.errors import TaskError
from crossgrade.gates.verdict import Finding, Verdict, counted, joined
from crossgrade.modules import gate
from crossgrade.modules.against import BASELINE_MANIFEST, holds, manifest_of, nothing_to_compare
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.modules.server import ServerArguments, read_mapping, read_server, server_spec, what_starts
from crossgrade.playbook.arguments import argument

if TYPE_CHECKING:
    from crossgrade.bench.asking import Questionnaire
    from crossgrade.bench.given_answers import AnswerSheet
    from crossgrade.bench.score_tools import ToolCall
    from crossgrade.gates.accuracy import AccuracyRules
    from crossgrade.gates.task_score import Question
    from crossgrade.modules.answering import Side

GATE = "accuracy"


@dataclass(frozen=True)
class Arguments:
    """Asks the old and the new server the same, and compares: answers, log-probabilities, results of a task."""

    server: Mapping[str, Any] = argument(
        doc="How both servers are started: `command`, `health`, `start_timeout`, `stop_grace` and "
        "`environment`, as in the module `server`."
    )
    generation: int = argument(doc="The generation to judge, as python_env returns it.")
    baseline_command: tuple[str, ...] = argument(
        doc="The command of the old server, where its version calls options differently (see `launch_check`); by "
        "default that of `server`.",
        default=(),
    )
    baseline: int | None = argument(
        doc="The generation to compare it with; without one, the active generation.", default=None
    )
    baseline_answers: Literal["recorded", "live"] = argument(
        doc="`recorded` takes the old server's answers from the record of its generation, and starts it only where "
        "there is none for these questions; `live` always starts it.",
        default="recorded",
    )
    prompts_file: Path | None = argument(
        doc="Prompts of your own: JSON lines, a ShareGPT-like JSON array, or one text in each line. Without one, a "
        "small neutral set.",
        default=None,
    )
    prompt_limit: int = argument(doc="How many prompts of that file are asked, its first ones.", default=256)
    questions_file: Path | None = argument(
        doc="Questions with a known result, as GSM8K has them: JSON lines with `question` and `answer`.", default=None
    )
    question_limit: int = argument(doc="How many questions of that file are asked, its first ones.", default=400)
    shots: int = argument(doc="The first so many questions are given as examples, and are not asked.", default=5)
    tool: Mapping[str, Any] = argument(
        doc="An evaluation tool that asks each server as well: `name` (`few_shot_gsm8k` or `sgl_eval`), `program`, "
        "`questions` (200), `shots` (5), `parallel` (32), `max_tokens` (512), `data_file`.",
        default_factory=dict,
    )
    concurrencies: tuple[int, ...] = argument(
        doc="Requests at any moment; each number is asked and judged by itself, since numbers can break at some batch "
        "sizes only.",
        default=(1, 8),
        aliases=("concurrency",),
    )
    max_tokens: int = argument(doc="Tokens to generate for each prompt.", default=64)
    task_max_tokens: int = argument(doc="Tokens to generate for each question.", default=512)
    endpoint: Literal["completions", "chat", "generate"] = argument(
        doc="`completions` (/v1/completions), `chat` (/v1/chat/completions) or SGLang's `generate` (/generate).",
        default="completions",
    )
    model: str | None = argument(
        doc="The model's name for the API; without one, the first that the server lists.", default=None
    )
    api_key: str = argument(doc="The key that the server asks for.", default="", secret=True)
    logprobs: bool = argument(
        doc="Ask for log-probabilities too; a server that refuses them is asked without.", default=True
    )
    timeout: float = argument(doc="Seconds that one request may take.", default=120.0)
    allowed_divergence: float = argument(
        doc="By how much the share of unchanged answers may be below that of the old server asked twice (0.4: 40%).",
        default=0.4,
    )
    allowed_distance: float = argument(
        doc="By how much log-probabilities may differ on average, beyond the old server's own difference, in nats.",
        default=0.1,
    )
    allowed_score_loss: float = argument(doc="The share of right results that may be lost (0.05: 5%).", default=0.05)
    minimum_score: float | None = argument(doc="The share of right results that is needed in any case.", default=None)
    keep_answers: bool = argument(
        doc="Keep the texts of all answers in the run's folder. Without it, only their digests, and of the places "
        "where answers part 80 characters each.",
        default=False,
    )
    on_not_run: gate.OnNotRun = argument(
        doc="What a verdict of `not run` (there is nothing to compare with) does to the run.", default="fail"
    )


@dataclass(frozen=True)
class ToolArguments:
    """The evaluation tool of the module `accuracy`."""

    name: Literal["few_shot_gsm8k", "sgl_eval"] = argument(doc="Which tool.")
    program: str = argument(
        doc="The interpreter for few_shot_gsm8k, by default each side's own `{python}`; for sgl_eval the program, by "
        "default `{venv}/bin/sgl-eval`.",
        default="",
    )
    questions: int = argument(doc="How many questions it asks.", default=200)
    shots: int = argument(doc="How many examples few_shot_gsm8k gives.", default=5)
    parallel: int = argument(doc="Requests at any moment.", default=32)
    max_tokens: int = argument(doc="Tokens to generate for each question.", default=512)
    data_file: Path | None = argument(doc="Its questions; by default it brings or downloads them.", default=None)


@dataclass(frozen=True)
class Asked:
    """What is asked of both servers, read from the files that the task names. `tool` has placeholders."""

    questionnaire: Questionnaire
    questions: tuple[Question, ...]
    rules: AccuracyRules
    tool: ToolCall | None
    digest: str


@dataclass(frozen=True)
class State:
    """What is on record, and what to compare with; `obstacle` is why that cannot be done, "" normally."""

    check: gate.GateState
    baseline: gate.Candidate | None
    obstacle: str
    prompts: int


def inspect(arguments: Arguments, host: HostView) -> State:
    candidate = gate.find_candidate(arguments.generation, None, host)
    number = host.active() if arguments.baseline is None else arguments.baseline
    baseline = None if number is None else gate.find_candidate(number, None, host)
    server = read_server(arguments.server, "accuracy: server")
    obstacle = gate.lacking_gpu(server.needs_gpu) or nothing_to_compare(candidate, number, arguments.baseline)
    asked = what_is_asked(arguments, host)
    rules = asked.rules
    matters = {
        "server": what_starts(server),
        "baseline": what_starts(baseline_of(arguments, server))["command"],
        "asked": asked.digest,
        "rules": [rules.allowed_divergence, rules.allowed_distance, rules.allowed_score_loss, rules.minimum_score],
    }
    state = gate.gate_state(GATE, candidate, host, matters)
    if state.recorded is not None and not holds(state.recorded, baseline, obstacle):
        state = replace(state, recorded=None)
    return State(state, baseline, obstacle, len(asked.questionnaire.prompts))


def plan(arguments: Arguments, state: State) -> Plan:
    planned = gate.plan_gate(state.check, "compare the answers of", arguments.on_not_run)
    if not isinstance(planned, Change):
        return planned
    if state.baseline is None or state.obstacle:
        return replace(planned, summary=f"{planned.summary}: it will not run, {state.obstacle}")
    at = joined(map(str, arguments.concurrencies))
    prompts = counted(state.prompts, "prompt")
    return replace(planned, summary=f"{planned.summary}: with {state.baseline.title}, {prompts} at concurrency {at}")


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    from crossgrade.modules.answering import keep_evidence

    state = inspect(arguments, context.host)
    candidate, baseline = state.check.candidate, state.baseline
    gate.refuse_unfinished(candidate)
    if baseline is None or state.obstacle:
        verdict = Verdict(GATE, "not run", state.obstacle)
        return gate.conclude(verdict, state.check, arguments.on_not_run, context)
    gate.refuse_unfinished(baseline)
    asked = what_is_asked(arguments, context.host)
    server = read_server(arguments.server, "accuracy: server")
    old = side_of("old", baseline, baseline_of(arguments, server), asked, context)
    new = side_of("new", candidate, server, asked, context)
    verdict, sheets = compare(old, new, asked, arguments.baseline_answers, context)
    header = {
        "schema": 1,
        "asked": asked.questionnaire.to_json(),
        "digest": asked.digest,
        "sides": {side.name: {"generation": side.candidate.number, "answers": side.key} for side in (old, new)},
    }
    figures = {
        **verdict.figures,
        "answers": str(keep_evidence(header, sheets, context, whole=arguments.keep_answers)),
        "baseline": baseline.number,
        BASELINE_MANIFEST: manifest_of(baseline),
    }
    return gate.conclude(replace(verdict, figures=figures), state.check, arguments.on_not_run, context)


def compare(
    old: Side, new: Side, asked: Asked, where_from: str, context: ApplyContext
) -> tuple[Verdict, dict[str, AnswerSheet]]:
    """Ask both and judge. The new server is not started where the old one's answers are no yardstick."""
    from crossgrade.gates.accuracy import judge_accuracy, unfit_baseline
    from crossgrade.modules.answering import ToolFailedError, live_answers, recorded_answers

    sheets: dict[str, AnswerSheet] = {}
    side = old
    try:
        sheet = recorded_answers(old, context) if where_from == "recorded" else None
        recorded = sheet is not None
        if sheet is None:
            sheet = live_answers(old, asked.questionnaire, None, context)
        sheets["old"] = sheet
        if reason := unfit_baseline(sheet):
            return Verdict(GATE, "not run", reason), sheets
        side = new
        references = [answer.text for answer in sheet.passes[0].answers]
        sheets["new"] = live_answers(new, asked.questionnaire, references, context)
    except ToolFailedError as error:
        return Verdict(GATE, "not run", f"the {side.name} server: {error.message}"), sheets
    except TaskError as error:
        return judge_broken(error, side), sheets
    verdict = judge_accuracy(sheets["old"], sheets["new"], asked.questions, asked.rules)
    return replace(verdict, figures={**verdict.figures, "baseline_recorded": recorded}), sheets


def judge_broken(error: TaskError, side: Side) -> Verdict:
    """A new server that does not serve fails the gate; an old one leaves nothing to compare with."""
    said, _, words = error.message.partition("; its last words:")
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    reason = f"the {side.name} server: {said}" + (f": {lines[-1]}" if lines else "")
    finding = Finding("failure", f"{side.name} server", said, {"last_words": list(lines), "log": error.remedy})
    return Verdict(GATE, "failed" if side.name == "new" else "not run", reason, (finding,))


def side_of(name: str, candidate: gate.Candidate, server: ServerArguments, asked: Asked, context: ApplyContext) -> Side:
    """How one server is started and asked, and the key under which its answers are kept."""
    from crossgrade.modules.answering import Side

    spec = server_spec(candidate, context.host, server, cwd=context.log_directory)
    tool = asked.tool
    if tool is not None:
        program = tool.program.replace("{python}", str(candidate.python)).replace("{venv}", str(candidate.venv))
        tool = replace(tool, program=program)
    key = gate.verdict_key("answers", candidate, {"server": what_starts(server), "asked": asked.digest})
    return Side(name, candidate, spec, key, tool)


def baseline_of(arguments: Arguments, server: ServerArguments) -> ServerArguments:
    """How the old server is started."""
    return replace(server, command=arguments.baseline_command) if arguments.baseline_command else server


# ---- what is asked


def what_is_asked(arguments: Arguments, host: HostView) -> Asked:
    """Read the files and check the numbers. Raises TaskError for what cannot be asked, or could not pass."""
    from crossgrade.bench.asking import Questionnaire
    from crossgrade.gates.accuracy import AccuracyRules
    from crossgrade.gates.task_score import STOP, word_prompts

    chat = arguments.endpoint == "chat"
    rules = AccuracyRules(
        allowed_divergence=arguments.allowed_divergence,
        allowed_distance=arguments.allowed_distance,
        allowed_score_loss=arguments.allowed_score_loss,
        minimum_score=arguments.minimum_score,
    )
    questions = questions_of(arguments, host)
    questionnaire = Questionnaire(
        prompts=prompts_of(arguments, host),
        endpoint=arguments.endpoint,
        model=arguments.model,
        max_tokens=arguments.max_tokens,
        concurrencies=arguments.concurrencies,
        timeout=arguments.timeout,
        logprobs=arguments.logprobs,
        task=word_prompts(questions, arguments.shots, chat=chat) if questions else (),
        task_max_tokens=arguments.task_max_tokens,
        task_stop=() if chat else STOP,
        headers={"Authorization": f"Bearer {arguments.api_key}"} if arguments.api_key else {},
    )
    tool = tool_of(arguments, host)
    rules.require_enough(len(questionnaire.prompts), len(questionnaire.task), tool.questions if tool else 0)
    whole = [
        questionnaire.to_json(),
        questionnaire.prompts,
        questionnaire.task,
        [question.expected for question in questions],
        [str(tool), file_digest(tool.data_file)] if tool else None,
    ]
    digest = hashlib.sha256(json.dumps(whole, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
    return Asked(questionnaire, tuple(questions[arguments.shots :]), rules, tool, digest)


def prompts_of(arguments: Arguments, host: HostView) -> tuple[str, ...]:
    """The prompts of the file, or the neutral set (`knowledge/neutral_prompts.yml`). Raises TaskError."""
    if arguments.prompts_file is None:
        from crossgrade.knowledge import table

        return tuple(str(row["prompt"]) for row in table("neutral_prompts"))
    from crossgrade.bench.prompt_files import read_prompt_set

    if arguments.prompt_limit < 1:
        raise TaskError(f"accuracy: prompt_limit is {arguments.prompt_limit}, at least 1 is needed")
    found = read_prompt_set(host.playbook_directory / arguments.prompts_file, arguments.prompt_limit)
    return tuple(prompt.text for prompt in found.prompts)


def questions_of(arguments: Arguments, host: HostView) -> Sequence[Question]:
    """The questions of the file, examples included; none without a file. Raises TaskError."""
    from crossgrade.gates.task_score import read_questions

    if arguments.questions_file is None:
        return ()
    path = host.playbook_directory / arguments.questions_file
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"accuracy: {path} cannot be read: {error}") from error
    return read_questions(text, str(path))[: max(1, arguments.question_limit) + max(0, arguments.shots)]


def tool_of(arguments: Arguments, host: HostView) -> ToolCall | None:
    """The evaluation tool, None where none is asked for. Raises TaskError."""
    from crossgrade.bench.score_tools import MOST_QUESTIONS, ToolCall

    if not arguments.tool:
        return None
    given = read_mapping(ToolArguments, arguments.tool, "accuracy: tool")
    if not 1 <= given.questions <= MOST_QUESTIONS or given.parallel < 1 or given.max_tokens < 1 or given.shots < 0:
        raise TaskError(f"accuracy: tool: numbers must be above 0, and `questions` at most {MOST_QUESTIONS}")
    program = given.program or ("{python}" if given.name == "few_shot_gsm8k" else "{venv}/bin/sgl-eval")
    data_file = str(host.playbook_directory / given.data_file) if given.data_file else ""
    return ToolCall(given.name, program, given.questions, given.shots, given.parallel, given.max_tokens, data_file)


def file_digest(path: str) -> str:
    """The SHA-256 of a file, "" for none. Raises TaskError."""
    if not path:
        return ""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise TaskError(f"accuracy: tool: {path} cannot be read: {error.strerror}") from error


MODULE = Module(
    name="accuracy",
    arguments=Arguments,
    effect="checks",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Gate: the candidate's server answers as the working one does.",
)
