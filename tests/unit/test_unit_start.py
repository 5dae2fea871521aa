"""A server under test from a systemd service: files of a unit in, a command and variables out."""

from __future__ import annotations

from pathlib import Path

import pytest

from crossgrade.errors import TaskError
from crossgrade.facts.units import filled_in, read_unit_start, variables_of
from crossgrade.modules.unit_start import read_unit

UNIT = """[Unit]
Description=SGLang
[Service]
WorkingDirectory=/srv
Environment=MODEL=/models/q "EXTRA=--tp 8 --context-length 32768" HF_TOKEN=hf_aaaaaaaaaaaaaaaaaaaaaaaa
Environment=CUDA_HOME=/usr/local/cuda-12.8 NCCL_DEBUG=WARN TRITON_CACHE_DIR=/var/cache/triton
EnvironmentFile=/etc/sglang.env
EnvironmentFile=-/etc/not-there.env
ExecStart=/usr/bin/numactl --interleave=all /srv/ml-env/bin/python -m sglang.launch_server \\
    --model-path ${MODEL} $EXTRA --host 0.0.0.0 --port 30000 --api-key ${KEY}
Restart=always
"""


def machine(folder: Path, unit: str = UNIT) -> Path:
    (folder / "etc/systemd/system/sglang.service.d").mkdir(parents=True)
    (folder / "etc/systemd/system/sglang.service").write_text(unit)
    (folder / "etc/sglang.env").write_text("# the key\nKEY='correct horse'\nNCCL_DEBUG=INFO\n")
    return folder


def test_what_a_unit_starts(tmp_path: Path) -> None:
    command, variables = read_unit("sglang", user=False, system=machine(tmp_path))
    assert command == (
        *("/usr/bin/numactl", "--interleave=all", "{python}", "-m", "sglang.launch_server", "--model-path"),
        *("/models/q", "--tp", "8", "--context-length", "32768", "--host", "{host}", "--port", "{port}"),
    )
    # the file counts above the unit's own lines; the old toolkit and the caches stay behind, and so does the key
    assert variables == {"NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_" + "a" * 24}


def test_a_drop_in_counts_and_a_console_script(tmp_path: Path) -> None:
    system = machine(tmp_path)
    drop_in = system / "etc/systemd/system/sglang.service.d/override.conf"
    drop_in.write_text("[Service]\nExecStart=\nExecStart=/srv/ml-env/bin/sglang serve /models/other\n")
    command, _ = read_unit("sglang.service", user=False, system=system)
    assert command == (
        *("{python}", "{venv}/bin/sglang", "serve", "/models/other", "--host", "{host}", "--port", "{port}"),
    )


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        ("[Service]\nExecStart=/usr/local/bin/start-server --fast\n", "how that starts a server is not known"),
        ("[Service]\nType=oneshot\n", "no file of sglang.service with an ExecStart= was found"),
        ("[Service]\nExecStart=python -m sglang.launch_server --model-path %S/m\n", "only systemd can fill in the"),
        (UNIT.replace("=/etc/sglang.env", "=/etc/secret.env"), "cannot read /etc/secret.env"),
        ("[Service]\nExecStart=python -m sglang.launch_server --hf-token abcdef\n", "holds a secret (--hf-token)"),
    ],
)
def test_what_cannot_be_taken_over(tmp_path: Path, unit: str, words: str) -> None:
    with pytest.raises(TaskError) as caught:
        read_unit("sglang", user=False, system=machine(tmp_path, unit))
    assert words in str(caught.value)
    assert "abcdef" not in str(caught.value)


def test_a_unit_that_is_not_there(tmp_path: Path) -> None:
    assert read_unit_start("nowhere.service", user=False, system=tmp_path) is None


def test_variables_in_the_order_of_systemd() -> None:
    settings = ["Environment=A=1 B=2", "Environment=", "Environment=B=3", "EnvironmentFile=/x", "EnvironmentFile=/y"]
    texts = {"/x": 'B=4\nC="with space"\n', "/y": None}
    assert variables_of(settings, texts.__getitem__) == ({"B": "4", "C": "with space"}, ("/y",))


def test_words_are_filled_in() -> None:
    variables = {"ONE": "a b", "TWO": "c"}
    assert filled_in(["$ONE", "x${TWO}y", "${ONE}", "$NONE", "100%%", "%h/m"], variables, "/root") == [
        *("a", "b", "xcy", "a b", "100%", "/root/m"),
    ]
