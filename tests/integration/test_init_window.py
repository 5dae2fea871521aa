"""The maintenance window of a first playbook, carried out: the unit is stopped, and runs again whatever happens.

The gates that need CUDA are taken out, and `systemctl` is a script that keeps a list of what it was asked. The server
is a real process of a real venv.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.commands import Answer, crossgrade
from tests.support.launch_parser import server_files
from tests.support.tiny_wheels import tiny_venv, tiny_wheel

from crossgrade.facts.serving import ProcessRecord, find_servers
from crossgrade.playbook.first import Found, playbook_text

SERVER = Path(__file__).parents[1] / "support" / "openai_server.py"
NEEDS_CUDA = ("preflight", "cuda_toolkit", "cuda_check", "abi_check", "gpu_arch_check")
# It keeps the state of one unit in a file.
SYSTEMCTL = """#!/bin/sh
for word in "$@"; do case "$word" in
  show) printf 'LoadState=loaded\\nActiveState='; cat FOLDER/state; exit 0 ;;
  stop) echo inactive >FOLDER/state ;;
  start|restart) echo active >FOLDER/state ;;
esac; done
echo "$@" >>FOLDER/asked
"""


class Upgrade:
    """A server of SGLang 1.0 to be moved to 2.0, by a unit."""

    def __init__(self, folder: Path, new_server: bytes) -> None:
        self.folder = folder
        # each version takes the option by its own name only, as launch_check translates it
        server = SERVER.read_bytes().replace(b"parse_args()", b"parse_known_args()[0]")
        old_server, newer = (
            server.replace(b"import argparse\n", b"import argparse, sys\nassert '%s' in sys.argv\n" % name)
            for name in (b"--cuda-graph-max-bs", b"--cuda-graph-max-bs-decode")
        )
        assert old_server != server
        for version, code in (("1.0", old_server), ("2.0", new_server or newer)):
            files = {**server_files(), "sglang/launch_server.py": code}
            wheel = tiny_wheel(folder, "sglang", version, files)
            if version == "1.0":
                tiny_venv(folder / "ml-env", wheel)
        programs = folder / "bin"
        programs.mkdir()
        (programs / "systemctl").write_text(SYSTEMCTL.replace("FOLDER", str(folder)))
        (programs / "systemctl").chmod(0o755)
        (folder / "state").write_text("active\n")
        self.playbook = folder / "playbook.yml"
        self.playbook.write_text(yaml.safe_dump(self._without_cuda(), sort_keys=False))

    def _without_cuda(self) -> Any:
        python = self.folder / "ml-env" / "bin" / "python"
        start = (str(python), "-m", "sglang.launch_server", "--model-path", "/models/q", "--port", "31000")
        argv = (*start, "--cuda-graph-max-bs", "8")
        group = "0::/system.slice/sglang.service"
        servers = find_servers([ProcessRecord(7, 1, argv, 0, environment={}, control_group=group)])
        found = Found(
            venv=str(self.folder / "ml-env"),
            root=str(self.folder / "root"),
            engine="sglang",
            cuda="13.0",
            versions={"sglang": "1.0"},
            server=servers[0],
            target="2.0",
            imports=("sglang",),
            health="/health",
        )
        plays = yaml.safe_load(playbook_text(found))
        plays[0]["vars"]["serving"]["needs_gpu"] = False  # this server runs anywhere
        tasks = [task for task in plays[0]["tasks"] if not any(name in task for name in NEEDS_CUDA)]
        for task in tasks:
            if "python_env" in task:
                del task["python_env"]["toolkit"]
                task["python_env"]["find_links"] = [str(self.folder)]
            for inner in task.get("block", ()):
                if "benchmark" in inner:
                    inner["benchmark"] |= {"requests": 16, "max_tokens": 8, "allowed_loss": 0.9}
                if "activate" in inner:
                    del inner["activate"]["healthy"]  # nothing starts a server where systemd is a script
        plays[0]["tasks"] = tasks
        return plays

    def run(self) -> Answer:
        path = f"{self.folder / 'bin'}:/usr/bin:/bin"
        return crossgrade("upgrade", "--playbook", self.playbook, "--json", environment={"PATH": path})

    def asked(self) -> list[str]:
        """What systemctl was asked since the last look."""
        file = self.folder / "asked"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines


def test_the_unit_is_stopped_for_the_gates_and_restarted_with_the_candidate(tmp_path: Path) -> None:
    upgrade = Upgrade(tmp_path, b"")
    done = upgrade.run()
    assert done.code == 0, done.stderr
    assert upgrade.asked() == [
        "--no-ask-password stop sglang.service",
        "restart sglang.service",
        "start sglang.service",
    ]
    assert (tmp_path / "ml-env").resolve() == tmp_path / "root/store/generations/2/venv"
    again = upgrade.run()
    assert again.code == 0, again.stderr
    assert upgrade.asked() == []
    assert (again.recap["changed"], again.recap["failed"]) == (0, 0)


@pytest.mark.parametrize("fault", [b"raise SystemExit('undefined symbol')", b"import sglang.nowhere"])
def test_the_unit_runs_again_after_a_gate_has_failed(tmp_path: Path, fault: bytes) -> None:
    upgrade = Upgrade(tmp_path, fault)
    failed = upgrade.run()
    assert failed.code == 2, failed.stderr
    assert upgrade.asked() == [
        "--no-ask-password stop sglang.service",
        "start sglang.service",
        "--no-ask-password start sglang.service",  # the undo of `drain`
    ]
    assert (tmp_path / "ml-env").resolve() == tmp_path / "root/store/generations/1/venv"
