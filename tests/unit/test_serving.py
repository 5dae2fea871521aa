"""Servers from command lines and environments as they stand in /proc, and the secrets that must not leave them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from crossgrade.facts.secrets import is_secret
from crossgrade.facts.serving import ProcessRecord, Secret, Server, find_launch, find_servers

SGLANG = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --host 0.0.0.0 --port 31000 --tp 2"


def a_record(line: str, pid: int = 7, parent: int = 1, **more: Any) -> ProcessRecord:
    values: dict[str, Any] = {"environment": {}, "directory": "/srv/work", **more}
    return ProcessRecord(pid, parent, tuple(line.split()), 1000, **values)


def the_server(line: str, **more: Any) -> Server:
    (server,) = find_servers([a_record(line, **more)])
    return server


def test_a_server_of_sglang() -> None:
    server = the_server(SGLANG)
    assert (server.engine, server.model, server.host, server.port) == ("sglang", "Qwen/Qwen3-8B", "0.0.0.0", 31000)  # noqa: S104
    assert server.command == (
        *("{python}", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-8B"),
        *("--host", "{host}", "--port", "{port}", "--tp", "2"),
    )
    assert server.health == "/health_generate"


@pytest.mark.parametrize(
    ("line", "engine", "model", "port", "start"),
    [
        ("/v/bin/python -m sglang.launch_server --model=/m/q", "sglang", "/m/q", 30000, "{python} -m"),
        (
            "/v/bin/python3.12 -u -X faulthandler -m sglang.launch_server --model-path m",
            "sglang",
            "m",
            30000,
            "{python}",
        ),
        (
            "/v/bin/python /v/bin/sglang serve --model-path m --port=8001",
            "sglang",
            "m",
            8001,
            "{python} {venv}/bin/sglang",
        ),
        (
            "/v/bin/python3 /v/bin/vllm serve meta/Llama --port 9000",
            "vllm",
            "meta/Llama",
            9000,
            "{python} {venv}/bin/vllm",
        ),
        ("python -m vllm.entrypoints.openai.api_server --model m", "vllm", "m", 8000, "{python} -m"),
        (
            "python /v/lib/python3.11/site-packages/sglang/launch_server.py --model m",
            "sglang",
            "m",
            30000,
            "{python} -m",
        ),
    ],
)
def test_ways_to_start_one(line: str, engine: str, model: str, port: int, start: str) -> None:
    server = the_server(line)
    assert (server.engine, server.model, server.port) == (engine, model, port)
    words = " ".join(map(str, server.command))
    assert words.startswith(start)
    assert words.count("{port}") == 1
    assert words.count("{host}") == 1


@pytest.mark.parametrize(
    "line",
    [
        "bash -c python -m sglang.launch_server",
        "/usr/bin/uv run python -m sglang.launch_server",
        "python -c from multiprocessing.spawn import spawn_main; -m sglang.launch_server",
        "python -m sglang.bench_serving --port 30000",
        "python -m vllm.entrypoints.openai",
        "vim /v/lib/sglang/launch_server.py",
        "/v/bin/python /v/bin/vllm bench serve",
        "python -m",
        "sglang::scheduler_TP0",
    ],
)
def test_what_starts_none(line: str) -> None:
    assert find_launch(line.split()) is None


def test_a_worker_that_was_forked_is_no_server() -> None:
    records = [a_record(SGLANG, 9, parent=7), a_record(SGLANG, 7), a_record(SGLANG, 12, parent=3)]
    assert [server.pid for server in find_servers(records)] == [7, 12]


def test_secrets_are_replaced_and_what_a_gate_cannot_use_is_left_out() -> None:
    line = (
        "python -m sglang.launch_server --model-path m --api-key first-secret --hf-token=second-secret "
        "--speculative-token-map map.pt --bucket-time-to-first-token 0.1 0.5 --ssl-certfile /c.pem "
        '--weights https://me:third-secret@host/w --disable-radix-cache --override {"store":{"password":"fourth"}}'
    )
    variables = {
        "HF_TOKEN": "fifth-secret",
        "SGLANG_TOKEN_BUDGET": "4096",
        "SGLANG_WORKER_AUTH": "sixth-secret",
        "NCCL_P2P_DISABLE": "1",
        "LD_LIBRARY_PATH": "/usr/local/cuda-12.8/lib64",
        "TRITON_CACHE_DIR": "/old",
        "AWS_SECRET_ACCESS_KEY": "seventh-secret",
        "HOME": "/home/me",
    }
    server = the_server(line, environment=variables)
    shown = repr(server)
    assert "secret" not in shown.replace("Secret", "").replace("secrets", "")
    assert "fourth" not in shown
    assert [secret.variable for secret in server.secrets] == [
        *("server_hf_token", "server_weights", "server_override", "hf_token", "sglang_worker_auth"),
    ]
    assert server.environment == {
        "HF_TOKEN": Secret("hf_token", "HF_TOKEN"),
        "NCCL_P2P_DISABLE": "1",
        "SGLANG_TOKEN_BUDGET": "4096",
        "SGLANG_WORKER_AUTH": Secret("sglang_worker_auth", "SGLANG_WORKER_AUTH"),
    }
    assert [one.name for one in server.left_out] == [
        "--api-key",
        "--ssl-certfile",
        "LD_LIBRARY_PATH",
        "TRITON_CACHE_DIR",
    ]
    words = list(server.command)
    assert words[words.index("--bucket-time-to-first-token") + 1 :][:2] == ["0.1", "0.5"]
    assert words[words.index("--speculative-token-map") + 1] == "map.pt"


def test_each_secret_has_a_variable_of_its_own() -> None:
    server = the_server("python -m sglang.launch_server --model m --hf-token one --hf-token two")
    assert [secret.variable for secret in server.secrets] == ["server_hf_token", "server_hf_token_2"]


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("--api-key", "123", True),
        ("--hf-token", "abc", True),
        ("--total-token", "4096", False),
        ("--max-total-tokens", "4096", False),
        ("--tokenizer-path", "/models/a", False),
        ("--served-model-name", "hf_" + "a" * 24, True),
        ("--extra", json.dumps({"a": [{"api_key": "x"}]}), True),
        ("--extra", json.dumps({"a": [{"rope": 1}]}), False),
        ("--model", "s3://bucket/m?X-Amz-Signature=0a1b", True),
        ("HF_TOKEN", "", False),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("WANDB_API_KEY", "0", True),
        ("CUDA_VISIBLE_DEVICES", "0,1", False),
    ],
)
def test_what_is_a_secret(name: str, value: str, secret: bool) -> None:
    assert is_secret(name, value) is secret


def test_relative_paths_are_made_absolute() -> None:
    local = frozenset({"models/q", "template.jinja", "qwen"})
    line = "python -m sglang.launch_server --model-path models/q --chat-template template.jinja --tool-call-parser qwen"
    command = the_server(line, local=local).command
    assert "/srv/work/models/q" in command
    assert "/srv/work/template.jinja" in command
    assert "qwen" in command


@pytest.mark.parametrize(
    ("group", "unit", "user"),
    [
        ("0::/system.slice/sglang.service\n", "sglang.service", False),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/qwen@1.service", "qwen@1.service", True),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", "", False),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-1.scope", "", True),
        ("0::/\n", "", False),
        ("", "", False),
    ],
)
def test_the_unit(group: str, unit: str, user: bool) -> None:
    server = the_server(SGLANG, control_group=group)
    assert (server.unit, server.user_unit) == (unit, user)


def test_where_the_environment_may_be() -> None:
    named = the_server("../ml-env/bin/python -m sglang.launch_server --model m")
    assert named.venvs[0] == "/srv/ml-env"
    found = the_server(
        SGLANG, environment={"VIRTUAL_ENV": "/opt/a", "PATH": "/opt/b/bin:/usr/sbin"}, program="/c/bin/python3"
    )
    assert found.venvs == ("/opt/a", "/opt/b", "/c")
    hidden = the_server(SGLANG, environment=None)
    assert "of user 1000" in hidden.unread


def test_the_port_that_it_listens_on() -> None:
    assert the_server("python -m sglang.launch_server --model m", ports=(32123,)).port == 32123


def test_what_a_person_should_know_of() -> None:
    line = "python -m sglang.launch_server --model m --nnodes"
    assert list(the_server(f"{line} 2 --config serve.yml").noted) == ["--nnodes", "--config"]
    assert not the_server(f"{line} 1").noted
