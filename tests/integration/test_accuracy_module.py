"""The accuracy gate with real launches of a server whose answers are the same each time, and wrong on order."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.support.gate_host import activate, add_generation, run_gate, tree
from tests.support.module_host import ModuleHost, plan_module

from crossgrade.errors import TaskError
from crossgrade.modules import accuracy
from crossgrade.modules.contract import Change, Outcome, Unchanged
from crossgrade.store.layout import Store

pytestmark = pytest.mark.usefixtures("store")

SERVER = {"command": ["{python}", "-m", "answering_server", "{port}"], "start_timeout": 30}
ANSWERING = Path(__file__).parents[1] / "support" / "answering_server.py"


def arguments(number: int = 2, **others: Any) -> dict[str, Any]:
    return {"server": SERVER, "generation": number, "max_tokens": 40, "concurrencies": [1, 4], **others}


def add(host: ModuleHost, number: int, answers: str = "", **environment: str) -> None:
    site = add_generation(host.store, number, environment={"ANSWERS": answers, **environment})
    (site / "answering_server.py").write_text(ANSWERING.read_text())


@pytest.fixture
def host(tmp_path: Path) -> ModuleHost:
    return ModuleHost(tmp_path)


@pytest.fixture
def store(host: ModuleHost) -> Store:
    """Generation 1, which is active, and 2, which answers the same."""
    add(host, 1)
    add(host, 2)
    activate(host.store, 1)
    return host.store


def judged(host: ModuleHost, number: int = 2, **others: Any) -> Outcome:
    from crossgrade.playbook.arguments import parse_arguments

    return run_gate(accuracy.MODULE, parse_arguments(accuracy.Arguments, arguments(number, **others)), host)


def new_answers(host: ModuleHost, answers: str, **others: Any) -> Outcome:
    add(host, 3, answers)
    return judged(host, 3, **others)


def started(host: ModuleHost) -> list[str]:
    """Which servers were started, in order."""
    return [message.split()[1] for message in host.messages if message.endswith("server: starting")]


def test_the_same_answers_pass_and_both_sides_are_recorded(store: Store, host: ModuleHost) -> None:
    planned = plan_module(accuracy.MODULE, arguments(), host)
    assert isinstance(planned, Change)
    assert planned.summary == ("compare the answers of generation 2: with generation 1, 48 prompts at concurrency 1, 4")
    before = tree(store.venv(1)), tree(store.venv(2))
    outcome = judged(host)
    assert not outcome.failed, outcome.message
    assert (tree(store.venv(1)), tree(store.venv(2))) == before
    assert outcome.message.startswith("48 of 48 answers as before at concurrency 1 (old against itself: 48, new ag")
    assert started(host) == ["old", "new"]
    criteria = outcome.values["figures"]["criteria"]
    assert set(criteria) == {
        *(
            f"{name}_at_{at}"
            for at in (1, 4)
            for name in ("same_answers", "distance_on_prefix", "distance_on_reference")
        )
    }
    assert criteria["distance_on_reference_at_4"]["mean"] == 0
    assert criteria["distance_on_reference_at_4"]["prompts"] == 44, "the long ones are not weighed"
    for number in (1, 2):
        (record,) = (store.folder(number) / "answers").iterdir()
        assert stat.S_IMODE(record.stat().st_mode) == 0o600
        assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
    # only digests are kept of this run
    evidence = Path(outcome.values["figures"]["answers"])
    assert stat.S_IMODE(evidence.stat().st_mode) == 0o600
    header, *lines = [json.loads(line) for line in evidence.read_text().splitlines()]
    assert len(lines) == 2 * 4 * 48
    assert set(lines[0]) == {
        *("side", "concurrency", "pass", "prompt"),
        *("sha256", "characters", "tokens", "finish_reason", "error"),
    }
    assert header["sides"]["old"]["generation"] == 1
    # activated: the verdict stands; against something else it says nothing
    activate(store, 2)
    assert isinstance(plan_module(accuracy.MODULE, arguments(), host), Unchanged)


def test_recorded_answers_spare_the_old_server_a_start(store: Store, host: ModuleHost) -> None:
    judged(host)
    add(host, 3)
    host.messages.clear()
    outcome = judged(host, 3)
    assert started(host) == ["new"]
    assert outcome.values["figures"]["baseline_recorded"] is True
    add(host, 4)
    host.messages.clear()
    judged(host, 4, baseline_answers="live")
    assert started(host) == ["old", "new"]
    # other questions are asked anew, and so are files that changed
    add(host, 5)
    host.messages.clear()
    judged(host, 5, max_tokens=41)
    assert started(host) == ["old", "new"]
    (store.folder(1) / "answers").chmod(0o700)
    for record in (store.folder(1) / "answers").iterdir():
        record.write_text("{}")
    add(host, 6)
    host.messages.clear()
    judged(host, 6)
    assert started(host) == ["old", "new"]
    assert any("cannot be used" in message for message in host.messages)


def test_answers_that_part_are_told_with_the_place(host: ModuleHost) -> None:
    outcome = new_answers(host, "diverge:6:1.0")
    assert outcome.failed
    assert outcome.message.startswith("0 of 48 answers as before at concurrency 1 (old against itself: 48")
    notes = [each for each in outcome.values["findings"] if "parts at token" in each["message"]]
    assert {each["evidence"]["token"] for each in notes} == {6}
    assert all(len(each["evidence"]["old"]) + len(each["evidence"]["new"]) <= 80 for each in notes)
    assert any("where the old server was sure" in each["message"] for each in outcome.values["findings"])


def test_some_answers_may_part(host: ModuleHost) -> None:
    outcome = new_answers(host, "diverge:6:0.2")
    assert not outcome.failed, outcome.message
    assert new_answers_again(host, allowed_divergence=0.1).failed


def new_answers_again(host: ModuleHost, **others: Any) -> Outcome:
    return judged(host, 3, **others)


def test_an_old_server_that_wavers_is_the_yardstick(host: ModuleHost) -> None:
    """Half of its answers differ the second time: a new server that differs as often is no worse."""
    add(host, 4, "flaky:0.7")
    add(host, 5, "flaky:0.7,diverge:2:0.6")
    outcome = judged(host, 5, baseline=4, allowed_divergence=0.3)
    assert not outcome.failed, outcome.message
    outcome = judged(host, 5, baseline=1, allowed_divergence=0.3)
    assert outcome.failed


@pytest.mark.parametrize(("shift", "failed"), [("0.001", False), ("0.5", True)])
@pytest.mark.parametrize("endpoint", ["completions", "chat", "generate"])
def test_log_probabilities(host: ModuleHost, shift: str, failed: bool, endpoint: str) -> None:
    outcome = new_answers(host, f"shift:{shift}", endpoint=endpoint, concurrencies=[4])
    assert outcome.failed is failed, outcome.message
    criteria = outcome.values["figures"]["criteria"]
    assert criteria["distance_on_prefix_at_4"]["mean"] == pytest.approx(float(shift))
    if endpoint == "chat":
        assert "distance_on_reference_at_4" not in criteria, "this API weighs no given answer"
    else:
        assert criteria["distance_on_reference_at_4"]["mean"] == pytest.approx(float(shift))
    if failed:
        assert "log-probabilities on common beginnings at concurrency 4 differ by 0.5 nats" in outcome.message


def test_a_server_without_log_probabilities(host: ModuleHost) -> None:
    outcome = new_answers(host, "refuse_logprobs")
    assert not outcome.failed, outcome.message
    assert set(outcome.values["figures"]["criteria"]) == {"same_answers_at_1", "same_answers_at_4"}


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ("fault:nan:0.1", "has numbers that are none"),
        ("fault:null:0.1", "token 3 has no finite log-probability"),
        ("fault:empty:0.1", "is empty"),
        ("fault:loop:0.1", "repeats itself without end"),
        ("fault:garbage:0.1", "characters that mean nothing"),
        ("fault:abort:0.1", "was aborted by the server"),
        ("fault:500:0.1", "failed: http_status: 500"),
        ("500", "failed: http_status: 500"),
        ("uniform", "all 48 prompts have the same answer"),
    ],
)
def test_hard_failures(host: ModuleHost, answers: str, words: str) -> None:
    outcome = new_answers(host, answers)
    assert outcome.values["verdict"] == "failed"
    assert words in outcome.message
    assert "concurrency 1, pass 1" in outcome.message


def test_a_server_that_dies_is_named_by_how_it_ended(host: ModuleHost) -> None:
    outcome = new_answers(host, "die")
    assert outcome.values["verdict"] == "failed"
    assert "the new server: the server ended by itself while it was in use (exit code 3" in outcome.message


def test_a_server_that_hangs_is_not_waited_for_long(host: ModuleHost) -> None:
    outcome = new_answers(host, "hang", timeout=0.5, concurrencies=[4])
    assert "the answer failed: timeout: no answer within 0.5 s" in outcome.message
    assert any("not_asked: too many requests had failed" in line for line in evidence_of(outcome))


def evidence_of(outcome: Outcome) -> list[str]:
    return Path(outcome.values["figures"]["answers"]).read_text().splitlines()


def test_what_the_old_server_does_too_is_a_warning(host: ModuleHost) -> None:
    add(host, 4, "fault:loop:0.2")
    add(host, 5, "fault:loop:0.2")
    outcome = judged(host, 5, baseline=4)
    assert not outcome.failed, outcome.message
    assert any("so is the old server's" in each["message"] for each in outcome.values["findings"])


def test_a_broken_old_server_is_no_yardstick(store: Store, host: ModuleHost) -> None:
    add(host, 4, "500")
    outcome = judged(host, 2, baseline=4)
    assert outcome.failed
    assert outcome.values["verdict"] == "not run"
    assert "requests to the old server failed: http_status: 500" in outcome.message
    assert started(host) == ["old"], "the new one is not started for nothing"
    assert not (store.folder(4) / "answers").exists(), "errors are no answers to keep"
    add(host, 6, "fault:nan:1.0")
    outcome = judged(host, 2, baseline=6, on_not_run="warn")
    assert not outcome.failed
    assert "answers of the old server are faulty" in outcome.message


def test_servers_that_do_not_start(store: Store, host: ModuleHost) -> None:
    add_generation(store, 4, environment={"SMALL_START": "fail"})
    small = {"command": ["{python}", "-m", "small_server", "{port}"], "start_timeout": 30}
    outcome = judged(host, 4, server=small, baseline_command=SERVER["command"])
    assert outcome.values["verdict"] == "failed"
    assert outcome.message.startswith("the new server: the server ended while starting")
    outcome = judged(host, 2, baseline=4, baseline_command=small["command"])
    assert outcome.values["verdict"] == "not run"
    assert "the old server" in outcome.message


# ---- the task


def questions(host: ModuleHost, count: int = 205) -> str:
    lines = [
        json.dumps({"question": f"What is {number} plus {3 * number}?", "answer": f"Add them.\n#### {4 * number:,}"})
        for number in range(count)
    ]
    (host.playbook_directory / "questions.jsonl").write_text("\n".join(lines) + "\n")
    return "questions.jsonl"


@pytest.mark.parametrize(("wrong", "verdict"), [("0.0", "passed"), ("0.3", "failed")])
def test_a_task_with_known_results(host: ModuleHost, wrong: str, verdict: str) -> None:
    outcome = new_answers(host, f"wrong:{wrong}", questions_file=questions(host), concurrencies=[8])
    assert outcome.values["verdict"] == verdict, outcome.message
    assert "questions: 200 of 200 right before" in outcome.message
    task = outcome.values["figures"]["criteria"]["task"]
    assert task["only_new"] == 0
    low, high = task["wilson"]
    assert low <= task["new"] <= high


def test_a_floor_for_the_score(host: ModuleHost) -> None:
    outcome = new_answers(host, "wrong:0.02", questions_file=questions(host), concurrencies=[8], minimum_score=0.999)
    assert outcome.failed
    assert outcome.message.endswith("at least 99.9% is asked for")


def test_a_tool_of_its_own(host: ModuleHost, tmp_path: Path) -> None:
    """The adapter's command line and folder; what the real tools print is in the unit tests."""
    tool = tmp_path / "sgl-eval"
    tool.write_text(
        "#!/bin/sh\npwd > seen_folder\necho Run directory: x\necho '== gsm8k =='\n"
        "echo '100 examples (single-shot)  |  0.1s'\necho '* score                =  91.00%'\n"
        "echo '  error_rate           =  0.00%'\n"
    )
    tool.chmod(0o755)
    asked = {"name": "sgl_eval", "program": str(tool), "questions": 100}
    outcome = judged(host, tool=asked, allowed_score_loss=0.1, concurrencies=[8])
    assert not outcome.failed, outcome.message
    assert "questions of sgl_eval: 91 of 100 right before, 91 of 100 now (83.8% to 95.2%)" in outcome.message
    assert not list(host.log_directory.glob("accuracy-*/"))
    tool.write_text("#!/bin/sh\necho no such dataset >&2\nexit 2\n")
    outcome = judged(host, tool={**asked, "parallel": 3}, concurrencies=[8], allowed_score_loss=0.1)
    assert outcome.values["verdict"] == "not run"
    assert outcome.message.startswith("not run: the old server: sgl_eval: exit code 2: no such dataset")


# ---- privacy, arguments


def test_a_key_is_sent_and_kept_nowhere(store: Store, host: ModuleHost) -> None:
    for number in (4, 5):
        add(host, number, ANSWERS_KEY="k-1234567")
    outcome = judged(host, 5, baseline=4, api_key="k-1234567")
    assert not outcome.failed, outcome.message
    kept = [path for path in store.root.rglob("*") if path.is_file() and "venv" not in path.parts]
    holders = [path.name for path in kept if b"k-1234567" in path.read_bytes()]
    assert holders == ["generation.json"] * 2, "where the test itself wrote it"


def test_answers_are_kept_when_asked_for(host: ModuleHost) -> None:
    (host.playbook_directory / "mine.txt").write_text("\n".join(f"private prompt {n}" for n in range(20)))
    outcome = judged(host, prompts_file="mine.txt", keep_answers=True, concurrencies=[2])
    _, first, *_ = [json.loads(line) for line in Path(outcome.values["figures"]["answers"]).read_text().splitlines()]
    assert len(first["text"].split()) == 40


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"server": {**SERVER, "healt": "/health"}}, ("accuracy: server", "healt", "health")),
        ({"baseline": 9}, ("there is no generation 9",)),
        ({"prompts_file": "none.txt"}, ("none.txt cannot be read",)),
        ({"allowed_divergence": 0.05}, ("48 prompts cannot rule out a loss of 0.05", "at least 59")),
        ({"allowed_distance": 0.0}, ("allowed_distance is 0.0",)),
        ({"concurrencies": [0]}, ("at least 1 is needed",)),
        ({"tool": {"name": "sgl_eval", "questions": 0}}, ("accuracy: tool",)),
    ],
)
def test_arguments_are_checked_when_planning(host: ModuleHost, others: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(TaskError) as caught:
        plan_module(accuracy.MODULE, arguments(**others), host)
    for word in words:
        assert word in f"{caught.value} {caught.value.remedy}"


def test_without_a_driver_a_server_for_gpus_is_not_asked(host: ModuleHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossgrade.inspect.machine.driver_version", lambda: None)
    outcome = judged(host, server={**SERVER, "needs_gpu": True}, on_not_run="warn")
    assert outcome.message == "not run: no NVIDIA driver on this machine"
    assert not outcome.failed
