"""The first playbook as text: what it holds, and that nothing from a command line can change its meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from crossgrade.facts.serving import ProcessRecord, find_servers
from crossgrade.modules import NAMES, arguments_of
from crossgrade.playbook.check import check_templates
from crossgrade.playbook.first import Found, assumptions, inventory_text, playbook_text
from crossgrade.playbook.loader import ModuleCatalogue, load_playbook

ARGUMENTS = ("/srv/ml-env/bin/python", "-m", "sglang.launch_server", "--model-path", "/m/q", "--port", "31000")


def a_finding(*more: str, group: str = "0::/system.slice/sglang.service", **changes: Any) -> Found:
    variables = {"HF_TOKEN": "secret", "NCCL_DEBUG": "INFO"}
    record = ProcessRecord(7, 1, (*ARGUMENTS, *more), 0, directory="/", environment=variables, control_group=group)
    (server,) = find_servers([record])
    values: dict[str, Any] = {
        "venv": "/srv/ml-env", "root": "/srv/crossgrade-ml-env", "engine": "sglang", "cuda": "13.0",
        "versions": {"sglang": "0.5.9", "torch": "2.9.1"}, "server": server, "target": "0.5.23",
        "target_torch": "2.14.1", "compute_capability": "12.0", "gpus": ("RTX PRO 6000, 12.0",),
        "imports": ("torch", "sglang"), "health": server.health,
    }  # fmt: skip
    return Found(**{**values, **changes})


def loaded(text: str, tmp_path: Path) -> Any:
    """The playbook as the loader takes it: it raises for any fault."""
    path = tmp_path / "playbook.yml"
    path.write_text(text, encoding="utf-8")
    playbook = load_playbook(path, ModuleCatalogue(NAMES, arguments_of))
    assert not check_templates(playbook)
    return playbook


def tasks_of(text: str) -> dict[str, Any]:
    """Each module's arguments, with those of the window, by module; the last of each name counts."""
    (play,) = yaml.load(text.replace("!unsafe ", ""), Loader=yaml.SafeLoader)
    tasks = [task for step in play["tasks"] for task in (*step.get("block", []), *step.get("always", []), step)]
    return {key: task[key] for task in tasks for key in task if key in NAMES}


def test_whether_it_needs_a_gpu() -> None:
    assert "  needs_gpu: true\n" in playbook_text(a_finding())
    assert "  needs_gpu: true\n" in playbook_text(a_finding("--device", "cuda:1"))
    assert "  needs_gpu: false\n" in playbook_text(a_finding("--device", "cpu"))
    assert "  needs_gpu: false\n" in playbook_text(a_finding("--device=cpu"))


def test_answers_are_compared_before_speed(tmp_path: Path) -> None:
    text = playbook_text(a_finding())
    loaded(text, tmp_path)
    asked = tasks_of(text)["accuracy"]
    assert asked["server"] == tasks_of(text)["benchmark"]["server"]
    assert asked["baseline_command"] == "{{ serving.command }}"
    assert text.index("accuracy:") < text.index("benchmark:")
    assert asked["concurrencies"] == [1, 8]


def test_the_whole_transaction(tmp_path: Path) -> None:
    text = playbook_text(a_finding())
    loaded(text, tmp_path)
    tasks = tasks_of(text)
    assert {
        "preflight",
        "environment_check",
        "venv_backup",
        "cuda_toolkit",
        "python_env",
        "consistency_check",
        "cuda_check",
        "abi_check",
    } < {*tasks}
    assert {"gpu_arch_check", "smoke_check", "server", "benchmark", "activate"} < {*tasks}
    assert tasks["environment_check"] == {"path": "{{ working_env }}"}
    assert tasks["activate"]["restart"] == ["systemctl", "restart", "sglang.service"]
    assert tasks["activate"]["healthy"]["url"] == "http://127.0.0.1:31000/health"
    assert tasks["drain"] == {"unit": "sglang.service", "port": 31000, "timeout": 300}
    assert tasks["abi_check"]["compare_with"] == "{{ backup.generation }}"
    assert tasks["command"]["argv"] == ["systemctl", "start", "sglang.service"]
    assert "secret" not in text.replace("secrets", "").replace("a secret is not set", "")
    assert 'sglang_version: "0.5.23" # now 0.5.9' in text
    assert playbook_text(a_finding()) == text


def test_a_unit_of_the_user_and_a_server_started_by_hand(tmp_path: Path) -> None:
    own = playbook_text(a_finding(group="0::/user.slice/user-1000.slice/user@1000.service/app.slice/q.service"))
    loaded(own, tmp_path)
    assert tasks_of(own)["activate"]["restart"] == ["systemctl", "--user", "restart", "q.service"]
    assert "unit" not in tasks_of(own)["activate"]["healthy"]
    assert tasks_of(own)["drain"]["user_unit"] is True
    by_hand = playbook_text(a_finding(group="0::/user.slice/session-3.scope"))
    loaded(by_hand, tmp_path)
    assert tasks_of(by_hand)["wait_for"] == {"port": 31000, "state": "stopped", "timeout": 900}
    assert "command" not in tasks_of(by_hand)


@pytest.mark.parametrize(
    "hostile",
    [
        '"\n  tasks: []\n#',
        "{{ lookup('env', 'HOME') }}",
        "{% raw %}",
        "a: b # c",
        "\x1b[2J\u2028\x85x",
        "\U0001f600",
        "{'a': {{1}}}",
    ],
)
def test_words_keep_their_meaning(hostile: str, tmp_path: Path) -> None:
    found = a_finding("--served-model-name", hostile, venv=f"/srv/{hostile}", gpus=(hostile,))
    text = playbook_text(found)
    (play,) = loaded(text, tmp_path).plays
    command = play.vars["serving"]["command"]
    assert str(command[command.index("--served-model-name") + 1]) == hostile
    assert str(play.vars["working_env"]) == f"/srv/{hostile}"
    assert {"tasks", "vars"} <= {*yaml.load(text.replace("!unsafe ", ""), Loader=yaml.SafeLoader)[0]}
    assert yaml.load(inventory_text(found), Loader=yaml.SafeLoader) == {
        "all": {"hosts": {"localhost": {"ansible_connection": "local"}}}
    }


def test_what_must_hold_code_for_the_gpu(tmp_path: Path) -> None:
    text = playbook_text(a_finding(require=("*/torch/lib/*",)))
    loaded(text, tmp_path)
    assert tasks_of(text)["gpu_arch_check"]["require"] == ["*/torch/lib/*"]
    assert "require" not in tasks_of(playbook_text(a_finding()))["gpu_arch_check"]


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    bare = a_finding(
        server=None, target="", target_torch="", compute_capability="", gpus=(), start=("{python}", "MODEL", "{port}")
    )
    text = playbook_text(bare)
    loaded(text, tmp_path)
    assert "without_gpu: warn" in text
    said = " ".join(assumptions(bare))
    for words in ("no server runs", "no GPU answered", "no version of sglang for CUDA 13.0 is known", "Python below"):
        assert words in said
    assert "without_gpu: fail" in playbook_text(a_finding())
