"""A matrix of experiments with real launches: faster, slower, blocked, hanging, refused, interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import PROGRAM, Answer, crossgrade, processes_below
from tests.support.gate_host import activate, add_generation, tree
from tests.support.module_host import ModuleHost, plan_module

from crossgrade.errors import TaskError
from crossgrade.modules import experiment
from crossgrade.modules.contract import Change, Outcome, Unchanged
from crossgrade.store.experiments import read_records

pytestmark = pytest.mark.usefixtures("site")

SERVER = {"command": ["{python}", "-m", "small_server", "{port}"], "start_timeout": 30}
QUICK: dict[str, Any] = {"requests": 4, "max_tokens": 10, "pairs": 1, "noise": 0.2}
NO_FILE = [{"kind": "architecture_list", "about": "its kernels", "places": [{"file": "engine.py", "name": "build",
            "keyword": "majors"}]}]  # fmt: skip


def arguments(name: str, variant: dict[str, Any] | None = None, **others: Any) -> experiment.Arguments:
    return experiment.Arguments(
        **{"experiment": name, "generation": 1, "server": SERVER, "variant": variant or {}, **QUICK, **others}
    )


@pytest.fixture
def host(tmp_path: Path) -> ModuleHost:
    return ModuleHost(tmp_path)


@pytest.fixture
def site(host: ModuleHost) -> Path:
    found = add_generation(host.store, 1, environment={"SMALL_TOKEN_SECONDS": "0.01"})
    activate(host.store, 1)
    return found


def try_it(host: ModuleHost, asked: experiment.Arguments) -> Outcome:
    """Plan and apply; then nothing is left to try, and nothing runs."""
    planned = plan_module(experiment.MODULE, asked, host)
    assert isinstance(planned, Change), planned
    before = tree(host.store.venv(1))
    outcome = experiment.MODULE.apply(asked, planned, host)
    assert tree(host.store.venv(1)) == before
    assert not outcome.failed, "no outcome fails the task"
    assert not host.steps, "there is nothing to undo"
    again = plan_module(experiment.MODULE, asked, host)
    assert isinstance(again, Unchanged), again
    assert again.values == outcome.values
    assert processes_below(host.store.root) == []
    return outcome


@pytest.mark.parametrize(
    ("seconds", "noise", "outcome"),
    [
        ("0.0005", 0.2, "unblocked and faster"),
        ("0.05", 0.2, "unblocked and slower"),
        ("0.0101", 0.9, "unblocked, no difference shown"),
    ],
)
def test_speeds(host: ModuleHost, seconds: str, noise: float, outcome: str) -> None:
    own = {"environment": {"SMALL_TOKEN_SECONDS": seconds}, "concurrencies": [1, 2]}
    said = try_it(host, arguments("own", own, noise=noise))
    assert said.values["outcome"] == outcome, said.message
    assert [each["concurrency"] for each in said.values["measured"]] == [1, 2]
    record = read_records(host.store.root).records[-1]
    assert record["generation"] == 1
    assert record["environment"] == {"SMALL_TOKEN_SECONDS": seconds}
    log = Path(str(said.values["evidence"][-1]).removeprefix("log: "))
    assert "loading the weights" in log.read_text()


def test_pairs_are_launched_in_turns(host: ModuleHost) -> None:
    said = try_it(host, arguments("own", {"environment": {"SMALL_TOKEN_SECONDS": "0.0005"}}, pairs=2))
    measured = said.values["measured"][0]
    assert measured["pairs"] == 2
    assert measured["low"] is not None
    told = [line.rpartition(": ")[2] for line in host.messages if ": pair " in line]
    assert told == [
        "pair 1 of 2, the variant server",
        "pair 1 of 2, the plain server",
        "pair 2 of 2, the plain server",
        "pair 2 of 2, the variant server",
    ]


def test_blocked_as_before_in_another_way_and_in_silence(host: ModuleHost) -> None:
    crash = {"environment": {"SMALL_START": "fail"}, "failures": ["missing_library"]}
    said = try_it(host, arguments("crashes", crash))
    assert said.values["outcome"] == "still blocked"
    assert "the old failure (missing_library)" in said.message
    assert "libcudart.so.13: cannot open shared object file" in str(said.values["evidence"][0])
    assert not any("plain server" in line for line in host.messages), "one launch is enough to know"
    said = try_it(host, arguments("other", {**crash, "failures": ["gpu_out_of_memory"]}))
    assert "another failure than before (missing_library)" in said.message
    quiet = {"environment": {"SMALL_SAYS": "fusion is disabled on this GPU"}, "refused": ["fusion is disabled"]}
    said = try_it(host, arguments("quiet", quiet))
    assert said.values["outcome"] == "still blocked"
    assert said.values["evidence"][0] == "fusion is disabled on this GPU"
    said = try_it(host, arguments("unsaid", {"environment": {"X": "1"}, "shown": [{"pattern": "workspace built"}]}))
    assert said.values["outcome"] == "still blocked"
    assert "never says that it is used" in said.message
    shown = {"environment": {"SMALL_SAYS": "workspace built"}, "shown": [{"pattern": "workspace built"}]}
    assert try_it(host, arguments("said", shown)).values["outcome"].startswith("unblocked")
    secret = {"environment": {"SMALL_SAYS": "fusion is disabled (api_key='sk-abcdefghijklmnopqrstuvwxyz')"}}
    said = try_it(host, arguments("secret", {**secret, "refused": ["fusion is disabled"]}))
    assert str(said.values["evidence"][0]).startswith("fusion is disabled (api_key=")
    assert "abcdefghij" not in str(read_records(host.store.root).records[-1]["evidence"])
    said = try_it(host, arguments("errors", {"environment": {"SMALL_FAIL_REQUESTS": "1"}}))
    assert "requests failed at concurrency 1 (" in said.message
    assert "http_status" in said.message


@pytest.mark.parametrize(
    ("environment", "words"),
    [({"SMALL_START": "hang"}, "not healthy within"), ({"SMALL_TOKEN_SECONDS": "600"}, "still answering 1 streams")],
)
def test_a_server_that_hangs_ends_with_the_time_limit(
    host: ModuleHost, environment: dict[str, str], words: str
) -> None:
    said = try_it(host, arguments("hangs", {"environment": environment}, time_limit=3.0))
    assert said.values["outcome"] == "still blocked"
    assert words in said.message
    assert "time limit of the experiment: 3 s" in said.message


def test_what_is_not_tried(host: ModuleHost, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "engine.py").write_text("def build():\n    flags(majors=[9, 10])\n")
    refused = {"environment": {"SMALL_TOKEN_SECONDS": "0.0005"}, "probes": NO_FILE}
    said = try_it(host, arguments("refused", refused))
    assert said.values["outcome"] == "not tried"
    assert "the sources say that it cannot work: its kernels: 9.x, 10.x only, not 12.0" in said.message
    assert said.values["evidence"] == ["engine.py:2: flags(majors=[9, 10])"]
    # a person may know better; and other sources are another question
    planned = plan_module(experiment.MODULE, arguments("refused", refused, even_if_refused=True), host)
    assert isinstance(planned, Change)
    assert planned.summary.startswith("try refused on generation 1: SMALL_TOKEN_SECONDS=0.0005; 1 launches of it")
    (site / "engine.py").write_text("def build():\n    flags(majors=[9, 10, 12])\n")
    assert try_it(host, arguments("refused", refused)).values["outcome"] == "unblocked and faster"

    needs = {"flags": ["--draft", "{draft_model}"], "values": {"draft_model": "a draft model"}}
    said = try_it(host, arguments("needs", needs, values={"draft_model": ""}))
    assert said.message == "not tried: it needs `draft_model` (a draft model)"
    said = try_it(host, arguments("same", {"without": ["--absent"]}))
    assert "the plain launch line is this variant already" in said.message
    monkeypatch.setattr("crossgrade.inspect.machine.driver_version", lambda: None)
    own = {"environment": {"SMALL_TOKEN_SECONDS": "0.0005"}}
    said = try_it(host, arguments("own", own, server={**SERVER, "needs_gpu": True}))
    assert said.message == "not tried: no NVIDIA driver on this machine"


def test_a_plain_line_that_does_not_serve_says_nothing_about_the_variant(host: ModuleHost) -> None:
    server = {**SERVER, "environment": {"SMALL_START": "fail"}}
    asked = arguments("own", {"environment": {"SMALL_START": ""}}, server=server)
    planned = plan_module(experiment.MODULE, asked, host)
    assert isinstance(planned, Change)
    said = experiment.MODULE.apply(asked, planned, host)
    assert said.message.startswith("not tried: the plain launch line does not serve")
    assert isinstance(plan_module(experiment.MODULE, asked, host), Change), "it is looked at again next time"


def test_again_and_other_settings(host: ModuleHost) -> None:
    own = {"environment": {"SMALL_TOKEN_SECONDS": "0.0005"}}
    try_it(host, arguments("own", own))
    assert isinstance(plan_module(experiment.MODULE, arguments("own", own, again=True), host), Change)
    assert isinstance(plan_module(experiment.MODULE, arguments("own", own, max_tokens=11), host), Change)
    for wrong, words in {"pairs": "pairs is 0", "time_limit": "time_limit is 0", "requests": "requests is 0"}.items():
        with pytest.raises(TaskError, match=words):
            plan_module(experiment.MODULE, arguments("own", own, **{wrong: 0}), host)


# ---- the whole matrix, as a user runs it

PLAYBOOK = """
- hosts: localhost
  vars:
    variants:
      quick: {title: Quick, environment: {SMALL_TOKEN_SECONDS: "0.0005"}}
      crash: {title: Crash, environment: {SMALL_START: fail}, failures: [missing_library]}
      slow: {title: Slow, environment: {SMALL_TOKEN_SECONDS: "0.05"}}
  tasks:
    - name: Try
      experiment:
        experiment: "{{ item }}"
        generation: "{{ crossgrade_active }}"
        server: {command: ["{python}", -m, small_server, "{port}"], start_timeout: 30}
        variant: "{{ variants[item] }}"
        requests: "{{ requests | default(4) }}"
        max_tokens: 10
        pairs: 1
        noise: 0.2
      loop: [quick, crash, slow]
"""


@pytest.fixture
def playbook(tmp_path: Path) -> Path:
    path = tmp_path / "matrix.yml"
    path.write_text(PLAYBOOK)
    return path


def run(tmp_path: Path, playbook: Path, *options: str) -> Answer:
    return crossgrade("experiments", "--playbook", playbook, "--root", tmp_path, *options)


def outcomes(host: ModuleHost) -> dict[str, str]:
    return {str(each["experiment"]): str(each["outcome"]) for each in read_records(host.store.root).records}


EXPECTED = {"quick": "unblocked and faster", "crash": "still blocked", "slow": "unblocked and slower"}


def test_a_matrix_and_its_documents(host: ModuleHost, tmp_path: Path, playbook: Path) -> None:
    said = run(tmp_path, playbook)
    assert said.code == 0, said.stderr
    assert outcomes(host) == EXPECTED, "a row that is blocked stops no other"
    folder = tmp_path / "experiments"
    assert f"written: {folder / 'plan.md'}" in said.stdout
    text = (folder / "results.md").read_text()
    assert "| Quick | `SMALL_TOKEN_SECONDS=0.0005` |  | unblocked and faster |" in text
    assert "the old failure (missing_library)" in text
    assert '<td class="outcome faster">unblocked and faster</td>' in (folder / "results.html").read_text()
    plan = folder / "plan.md"
    note = "Kim: the crash is known, see ticket 12.\n"
    plan.write_text(plan.read_text().replace("<!-- notes -->\n", f"<!-- notes -->\n{note}"))
    before = plan.read_text()
    count = len(read_records(host.store.root).records)
    assert run(tmp_path, playbook).code == 0
    assert len(read_records(host.store.root).records) == count, "what is on record is not tried again"
    assert plan.read_text() == before
    plan.write_text(before.replace("<!-- end of notes -->\n", "", 1))
    said = run(tmp_path, playbook, "--tables")
    assert said.code != 0
    assert "is left as it is: the notes of" in said.stderr


def test_an_interrupted_matrix_goes_on_where_it_stopped(host: ModuleHost, tmp_path: Path, playbook: Path) -> None:
    argv = [str(PROGRAM), "experiments", "--playbook", str(playbook), "--root", str(tmp_path)]
    long = ["-e", "requests=12"]  # the third row takes long enough to be caught in it
    process = subprocess.Popen(argv + long, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while len(outcomes(host)) < 2 and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        assert set(outcomes(host)) == {"quick", "crash"}
        os.killpg(process.pid, signal.SIGKILL)
    finally:
        process.communicate()
    deadline = time.monotonic() + 30
    while processes_below(host.store.root) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_below(host.store.root) == [], "no server outlives a killed run"
    first = read_records(host.store.root).records
    said = run(tmp_path, playbook, *long)
    assert said.code == 0, said.stderr
    assert outcomes(host) == EXPECTED
    records = read_records(host.store.root).records
    assert records[:2] == first
    assert [each["experiment"] for each in records] == ["quick", "crash", "slow"], "nothing was tried twice"


def test_dry_run_of_a_store_starts_nothing(host: ModuleHost, tmp_path: Path, playbook: Path) -> None:
    said = run(tmp_path, playbook, "--dry-run", "--generation", "1", "--for", "12.0", "--json")
    assert said.code == 0, said.stderr
    answers = json.loads(said.stdout)
    assert answers["sglang"] is None
    assert {each["answer"] for each in answers["experiments"]} == {"not known"}
    assert not (tmp_path / "experiments").exists()
    assert not list(host.store.root.glob("runs/*/*.log"))
    said = run(tmp_path, playbook, "--dry-run", "--generation", "1", "--venv", "/", "--for", "12.0")
    assert said.code != 0
    assert "two environments" in said.stderr
    said = run(tmp_path, playbook, "--dry-run", "--generation", "1", "--for", "twelve")
    assert said.code != 0
