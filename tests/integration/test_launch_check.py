"""launch_check on small environments whose parser is really asked, in a process of their own Python."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.gate_host import add_generation, run_gate, tree
from tests.support.launch_parser import NEW, server_files
from tests.support.module_host import ModuleHost, plan_module

from crossgrade.engine.results import TaskResult, result_event
from crossgrade.facts.launch_line import read_line
from crossgrade.gates.launch import for_the_parser, parser_row, read_parser
from crossgrade.modules import launch_check
from crossgrade.modules.contract import Change, Outcome
from crossgrade.playbook.arguments import parse_arguments
from crossgrade.process import run_process

SECRET = "sk-abcdefghijklmnopqrstuvwxyz"  # noqa: S105 - made up
START = ("{python}", "-m", "sglang.launch_server", "--model-path", "/m/q", "--host", "{host}", "--port", "{port}")


@pytest.fixture
def host(tmp_path: Path) -> ModuleHost:
    return ModuleHost(tmp_path)


def candidate(host: ModuleHost, code: bytes = NEW, version: str = "0.5.23") -> Path:
    """Generation 2 with the small server; gives its site-packages."""
    site = add_generation(host.store, 2)
    for name, content in server_files(code).items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(content)
    info = site / f"sglang-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: sglang\nVersion: {version}\n")
    return site


def arguments(*words: str, **more: Any) -> launch_check.Arguments:
    return parse_arguments(launch_check.Arguments, {"generation": 2, "command": [*START, *words], **more})


def asked(host: ModuleHost, *words: str, **more: Any) -> Outcome:
    return run_gate(launch_check.MODULE, arguments(*words, **more), host)


def findings(outcome: Outcome, *levels: str) -> list[str]:
    return [each["message"] for each in outcome.values["findings"] if each["level"] in levels]


def test_a_line_that_is_taken(host: ModuleHost) -> None:
    site = candidate(host)
    before = tree(site)
    outcome = asked(host, "--tp-size", "2", "--attention-backend", "triton", "--extra", '{"a": 1}')
    assert outcome.message == "sglang 0.5.23's own parser takes all 6 options"
    assert outcome.values["command"][2:] == [*START[2:], *outcome.values["command"][9:]]
    assert outcome.values["figures"]["how"] == "asked"
    assert tree(site) == before


def test_renamed_options_are_translated(host: ModuleHost) -> None:
    candidate(host)
    words = ("--cuda-graph-max-bs", "128", "--enable-flashinfer-allreduce-fusion")
    planned = plan_module(launch_check.MODULE, arguments(*words), host)
    assert isinstance(planned, Change)
    assert "--cuda-graph-max-bs 128 -> --cuda-graph-max-bs-decode 128" in planned.summary
    outcome = asked(host, *words)
    new = [*START, "--cuda-graph-max-bs-decode", "128", "--flashinfer-allreduce-fusion-backend", "auto"]
    assert outcome.values["command"] == new
    assert planned.values_known
    assert planned.values["command"] == new, "the later tasks of a plan see the line, too"
    assert outcome.message.endswith("takes all 5 options, 2 of them translated")
    # the line for the new version stays as it is
    again = asked(host, *new[len(START) :])
    assert again.values["command"] == new
    assert again.values["translated"] == []


def test_without_translation_the_gate_fails(host: ModuleHost) -> None:
    candidate(host)
    outcome = asked(host, "--cuda-graph-max-bs", "128", translate=False)
    assert outcome.failed
    assert outcome.message.startswith("--cuda-graph-max-bs is no option of sglang 0.5.23 any more: use --cuda-graph")
    assert outcome.values["command"] == [*START, "--cuda-graph-max-bs", "128"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--nonsense", "1"), "--nonsense is no option of sglang 0.5.23"),
        (("--atention-backend", "triton"), "did you mean --attention-backend?"),
        (("--attention-backend", "cutlass_mla"), "--attention-backend: invalid choice: 'cutlass_mla'"),
        (("--tp-size", "two"), "--tp-size: invalid int value: 'two'"),
        (("--tp-size",), "--tp-size: expected one argument"),
        (("--extra", "{"), "--extra: invalid loads value"),
        (("--disable-cuda-graph=1",), "--disable-cuda-graph: ignored explicit argument '1'"),
        (("--tp-size", "1", "2"), "--tp-size: nothing takes what follows it: 2"),
        (("--cuda-graph", "1"), "--cuda-graph: ambiguous option"),
        # a name that is gone, and that argparse would silently take for another that begins so
        (("--stream-output", "3"), "argparse takes it for --stream-output-interval: use --incremental"),
        (("--torchao-config", "int8wo"), "--torchao-config is no option of sglang 0.5.23 any more: torchao is gone"),
    ],
)
def test_what_is_refused(host: ModuleHost, words: Sequence[str], message: str) -> None:
    candidate(host)
    outcome = asked(host, *words, translate=False)
    assert outcome.failed
    assert message in outcome.message
    assert len(findings(outcome, "failure")) == 1


def test_what_is_missing_and_all_faults_at_once(host: ModuleHost) -> None:
    candidate(host)
    command = ["{python}", "-m", "sglang.launch_server", "--port", "{port}"]
    outcome = run_gate(launch_check.MODULE, launch_check.Arguments(command=tuple(command), generation=2), host)
    assert outcome.message == "the following arguments are required: --model-path/--model"
    many = asked(host, "--nonsense", "--tp-size", "two", "--host", "x", "--extra", "{")
    assert len(findings(many, "failure")) == 3


def test_what_is_deprecated_or_short_is_told(host: ModuleHost) -> None:
    candidate(host)
    outcome = asked(host, "--disable-cuda-graph", "--tensor", "1", environment={"SGLANG_OLD": 1}, translate=False)
    assert not outcome.failed
    assert findings(outcome, "warning") == [
        "--disable-cuda-graph is deprecated: '--disable-cuda-graph' is deprecated. Use --cuda-graph-backend.",
        "Environment variable SGLANG_OLD is deprecated. Please use SGLANG_NEW instead.",
    ]
    assert "--tensor is short for --tensor-parallel-size" in findings(outcome, "note")[1]


@pytest.mark.parametrize(
    "words", [("--api-key", SECRET), (f"--api-key={SECRET}",), ("--extra", f'{{"key": "{SECRET}"}}')]
)
def test_no_secret_is_told(host: ModuleHost, words: Sequence[str]) -> None:
    candidate(host)
    planned = plan_module(launch_check.MODULE, arguments(*words), host)
    assert isinstance(planned, Change)
    outcome = asked(host, *words)
    assert not outcome.failed
    assert outcome.values["command"][-len(words) :] == list(words), "the server gets it"
    result = TaskResult("ok", values=outcome.values, verdict=outcome.verdict.to_json() if outcome.verdict else None)
    told = json.dumps(result_event("1", "check", "launch_check", result, "", None))
    kept = [path.read_text(errors="replace") for path in host.store.root.rglob("*") if path.is_file()]
    assert SECRET not in told + planned.summary + outcome.message + "".join(kept) + "".join(host.messages)


def test_the_file_of_its_options(host: ModuleHost, tmp_path: Path) -> None:
    candidate(host)
    file = tmp_path / "serve.yaml"
    file.write_text(f"cuda-graph-max-bs: 128\ntp-size: 2\napi-key: {SECRET}\n")
    outcome = asked(host, "--config", str(file))
    assert findings(outcome, "failure") == [
        "--cuda-graph-max-bs is no option of sglang 0.5.23 any more: use --cuda-graph-max-bs-decode ...; it was about "
        f"decoding; graphs of prefill have --cuda-graph-max-bs-prefill (in {file})"
    ]
    assert SECRET not in json.dumps(outcome.values)
    file.write_text("tp-size: 2\n")
    assert not asked(host, "--config", str(file)).failed
    missing = asked(host, "--config", str(tmp_path / "nowhere.yaml"))
    assert "nowhere.yaml cannot be used: FileNotFoundError" in missing.message


def test_a_parser_that_cannot_be_asked(host: ModuleHost) -> None:
    why = b"raise ImportError('libcuda.so.1: cannot open shared object file: No such file or directory')\n"
    site = candidate(host, why + NEW)
    outcome = asked(host, "--tp-size", "2")
    assert outcome.failed
    assert outcome.values["verdict"] == "not run"
    assert "importing sglang.srt.server_args: ImportError: libcuda.so.1: cannot open" in outcome.message
    assert not asked(host, "--tp-size", "3", on_not_run="warn").failed
    # what its source shows to be wrong is wrong
    wrong = asked(host, "--attention-backend", "none")
    assert wrong.values["verdict"] == "failed"
    assert wrong.values["figures"]["how"] == "read"
    (site / "sglang/srt/server_args.py").write_bytes(b"import os\nos.abort()\n")
    assert "killed by SIGABRT" in asked(host, "--tp-size", "2").message
    (site / "sglang/srt/server_args.py").write_bytes(b"import time\ntime.sleep(60)\n")
    assert "its time limit" in asked(host, "--tp-size", "2", timeout=0.5).message


def test_what_is_no_launch_line_that_is_known(host: ModuleHost) -> None:
    candidate(host)
    for command, why in (
        (["/usr/bin/serve", "{port}"], "starts no server that is known"),
        (["{python}", "-m", "vllm.entrypoints.openai.api_server", "--port", "{port}"], "where the parser of vllm is"),
        (["{venv}/bin/sglang", "serve", "m", "--model-type", "diffusion", "--port", "{port}"], "has another parser"),
    ):
        planned = launch_check.Arguments(command=tuple(command), generation=2)
        outcome = run_gate(launch_check.MODULE, planned, host)
        assert outcome.values["verdict"] == "not run"
        assert why in outcome.message
        assert outcome.values["command"] == command


def test_the_console_script(host: ModuleHost) -> None:
    candidate(host)
    command = ("numactl", "-N0", "{venv}/bin/sglang", "serve", "/m/q", "--model-type", "llm", "--port", "{port}")
    outcome = run_gate(launch_check.MODULE, launch_check.Arguments(command=command, generation=2), host)
    assert not outcome.failed, outcome.message


def test_the_line_of_its_unit(host: ModuleHost, tmp_path: Path) -> None:
    candidate(host)
    folder = tmp_path / ".config/systemd/user"
    (folder / "q.service.d").mkdir(parents=True)
    line = "/srv/ml-env/bin/python -m sglang.launch_server --model m"
    (folder / "q.service").write_text(f"[Service]\nExecStart={line} --cuda-graph-max-bs 8\n")
    (folder / "q.service.d" / "more.conf").write_text(
        f"[Service]\nExecStart=\nExecStart={line} --cuda-graph-max-bs \\\n  64 --api-key {SECRET}\n"
    )
    host.environment = {**host.environment, "HOME": str(tmp_path)}
    planned = plan_module(launch_check.MODULE, arguments(unit="q.service", user_unit=True), host)
    assert isinstance(planned, Change)
    assert "q.service keeps its own command line" in planned.summary
    outcome = asked(host, unit="q.service", user_unit=True)
    assert not outcome.failed
    (finding,) = [each for each in outcome.values["findings"] if each["level"] == "warning"]
    assert "--cuda-graph-max-bs 64 -> --cuda-graph-max-bs-decode 64" in finding["message"]
    assert "ExecStart=\nExecStart=/srv/ml-env/bin/python" in finding["evidence"]["drop_in"]
    assert SECRET not in json.dumps(outcome.values)
    assert "no file of other.service was found" in findings(asked(host, unit="other.service"), "warning")[0]


def test_the_source_says_the_same_as_the_parser(host: ModuleHost) -> None:
    """What a deep plan reads; the parser itself is asked in a process of its own here, too."""
    site = candidate(host)
    row = parser_row("sglang")
    line = read_line([*START, "--disable-cuda-graph"])
    assert row is not None
    assert line is not None
    read = read_parser(site, row, for_the_parser(line, row)[0])
    code = (
        "import argparse, json, sglang.srt.server_args as s\n"
        "p = argparse.ArgumentParser()\n"
        "s.ServerArgs.add_cli_args(p)\n"
        "print(json.dumps(sorted(n for a in p._actions for n in a.option_strings)))"
    )
    venv = host.store.venv(2)
    said = run_process([str(venv / "bin" / "python"), "-B", "-c", code], env={}, timeout=60)
    assert sorted(read.options) == json.loads(said.stdout)
    assert [name for name, text in read.options.items() if text] == ["--disable-cuda-graph"]
