"""diff, pin, retire, gc and verify on a real store, with real processes that run from its generations."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.privileges import needs_strace
from tests.support.small_upgrade import SmallUpgrade, keep, make_small_upgrade
from tests.support.strace import injecting


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], SmallUpgrade]:
    made = make_small_upgrade(tmp_path_factory.mktemp("commands") / "server")
    for version in ("2.0", "3.0"):
        assert made.run("upgrade", "-e", f"version={version}").code == 0
    return keep(made)


@pytest.fixture
def upgrade(again: Callable[[], SmallUpgrade]) -> SmallUpgrade:
    """Generations 1 (1.0, adopted), 2 (2.0) and 3 (3.0); 3 is active."""
    return again()


def numbers(upgrade: SmallUpgrade) -> list[int]:
    return [each.number for each in upgrade.store.generations()]


def test_diff(upgrade: SmallUpgrade) -> None:
    answer = upgrade.run("diff", "1", "3")
    assert answer.code == 0, answer.stderr
    assert "~ small-engine 1.0 -> 3.0" in answer.stdout
    assert "+ server passed" in answer.stdout
    assert "small_engine/__init__.py" in answer.stdout
    assert "bin/activate" not in answer.stdout, "what only names its own place is no difference"
    told = json.loads(upgrade.run("diff", "2", "3", "--json").stdout)
    assert told["dists"] == [{"name": "small-engine", "before": "2.0", "after": "3.0"}]
    assert told["files"]["changed"] == [next(path for path in told["files"]["changed"] if path.endswith("__init__.py"))]
    assert upgrade.run("diff", "2", "3", "--detailed-exitcode").code == 2
    same = upgrade.run("diff", "2", "2", "--detailed-exitcode")
    assert same.code == 0
    assert "are the same" in same.stdout
    assert upgrade.run("diff", "2", "9").code == 1
    assert upgrade.run("diff", "2").code == 5
    assert upgrade.run("diff", "2", "x").code == 5


def test_what_the_servers_say_of_themselves_is_compared(upgrade: SmallUpgrade) -> None:
    assert '~ version "2.0" -> "3.0"' in upgrade.run("diff", "2", "3").stdout  # by the gate's own starts
    settings = {"attention_backend": "triton", "port": 1, "sizes": {"tp": 8}, "internal_states": [{"load": 1}]}
    upgrade.store.write_server_info(2, {"path": "/server_info", "info": settings})
    newer = {"attention_backend": "flashinfer", "port": 2, "sizes": {"tp": 4}, "internal_states": [{"load": 2}]}
    upgrade.store.write_server_info(3, {"path": "/server_info", "info": newer})
    answer = upgrade.run("diff", "2", "3")
    assert 'attention_backend "triton" -> "flashinfer"' in answer.stdout
    assert "sizes.tp 8 -> 4" in answer.stdout
    told = json.loads(upgrade.run("diff", "2", "3", "--json").stdout)
    assert [each["name"] for each in told["server"]] == ["attention_backend", "sizes.tp"]  # no port, no states


def test_native_libraries_are_compared_by_what_they_need(upgrade: SmallUpgrade, tmp_path: Path) -> None:
    from crossgrade.store.manifest import build_manifest, write_manifest

    source = tmp_path / "empty.c"
    source.write_text("int here(void) { return 1; }\n")
    for number, needs in ((2, "-lc"), (3, "-lm")):
        library = upgrade.store.venv(number) / "lib" / "libhere.so"
        linker = ["-Wl,--no-as-needed", f"-Wl,-soname,libhere.so.{number}"]
        subprocess.run(["gcc", "-shared", *linker, "-o", str(library), str(source), needs], check=True)
        manifest = build_manifest(upgrade.store.venv(number))
        write_manifest(upgrade.store.manifest_path(number), manifest)
        upgrade.store.write_generation(upgrade.store.generation(number).with_state("ready", manifest=manifest.digest))
    answer = upgrade.run("diff", "2", "3")
    assert "~ lib/libhere.so libhere.so.2, needs libc.so.6 -> libhere.so.3, needs libc.so.6, libm.so.6" in answer.stdout


def test_pinned_generations_stay(upgrade: SmallUpgrade) -> None:
    assert upgrade.run("upgrade", "-e", "version=2.0").code == 0  # 3 is where a rollback goes now
    assert upgrade.run("rollback", "--to", "1").code == 0
    assert "generation 2 is pinned: gc keeps it" in upgrade.run("pin", "2").stdout
    assert "(it was already)" in upgrade.run("pin", "2").stdout
    assert next(each["pinned"] for each in upgrade.status()["generations"] if each["number"] == 2)
    kept = upgrade.run("gc", "--keep", "0", "-v")
    assert kept.code == 0
    assert "kept generation 2: pinned" in kept.stdout
    assert "removed generation 3" in kept.stdout
    assert numbers(upgrade) == [1, 2]
    assert upgrade.run("retire", "2").code == 1
    assert upgrade.run("unpin", "2").code == 0
    assert upgrade.run("gc", "--keep", "0").code == 0
    assert numbers(upgrade) == [1]
    assert upgrade.run("pin", "7").code == 1


def test_retire(upgrade: SmallUpgrade) -> None:
    for number, words in (("3", "is the active one"), ("1", "the backup"), ("2", "where `rollback` goes")):
        answer = upgrade.run("retire", number)
        assert answer.code == 1
        assert words in answer.stderr
    assert numbers(upgrade) == [1, 2, 3]
    assert "removed generation 2, freed" in upgrade.run("retire", "2", "--force").stdout
    assert numbers(upgrade) == [1, 3]
    assert upgrade.outcome() == "new"


def test_what_a_process_runs_from_is_never_removed(upgrade: SmallUpgrade) -> None:
    assert upgrade.run("rollback", "--to", "1").code == 0
    held = next(upgrade.store.venv(2).glob("lib/python3*/site-packages/small_engine/server.py"))
    code = "import sys, time; stream = open(sys.argv[1]); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen(
        [upgrade.store.venv(1) / "bin" / "python", "-c", code, held], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            refused = upgrade.run("retire", "2")
            assert refused.code == 1
            assert f"in use by pid {process.pid}" in refused.stderr
            kept = upgrade.run("gc", "--keep", "0")
            assert f"kept generation 2: in use by pid {process.pid}" in kept.stdout
            assert numbers(upgrade) == [1, 2]
        finally:
            process.kill()
    assert upgrade.run("gc", "--keep", "0").code == 0
    assert numbers(upgrade) == [1]


def test_an_interrupted_run_keeps_gc_and_retire_away(upgrade: SmallUpgrade) -> None:
    killed = upgrade.run("upgrade", "-e", "version=2.0", environment={"CROSSGRADE_KILL_AT": "intended:activate"})
    assert killed.code == -signal.SIGKILL
    for command in (["gc"], ["retire", "2", "--force"]):
        answer = upgrade.run(*command)
        assert answer.code == 1
        assert "was interrupted" in answer.stderr
    assert numbers(upgrade) == [1, 2, 3]


@needs_strace
def test_a_removal_that_was_killed_is_finished(upgrade: SmallUpgrade) -> None:
    assert upgrade.run("rollback", "--to", "1").code == 0
    argv = [*injecting("unlinkat:signal=SIGKILL:when=5"), *upgrade.argv("gc", "--keep", "0")]
    subprocess.run(argv, capture_output=True, check=False)
    states = {each.number: each.state for each in upgrade.store.generations()}
    assert "building" in states.values(), "a half removed one can never be activated"
    assert upgrade.run("gc", "--keep", "0").code == 0
    assert numbers(upgrade) == [1]
    assert sorted(path.name for path in (upgrade.store.root / "generations").iterdir()) == ["1"]


def test_verify_says_what_differs(upgrade: SmallUpgrade) -> None:
    venv = upgrade.store.venv(3)
    package = next(venv.glob("lib/python3*/site-packages/small_engine"))
    (package / "__init__.py").write_text("VERSION = '3.1'\n")
    (package / "server.py").chmod(0o600)
    (venv / "pyvenv.cfg").unlink()
    (venv / "new").touch()
    (venv / "bin" / "python3").unlink()
    (venv / "bin" / "python3").symlink_to("elsewhere")
    (venv / "bin" / "activate").unlink()
    (venv / "bin" / "activate").mkdir()
    answer = upgrade.run("verify", "3")
    assert answer.code == 2
    lines = answer.stdout.splitlines()
    base = package.relative_to(venv)
    size = len("VERSION = '3.1'\n")
    assert f"changed: {base}/__init__.py ({size} -> {size} bytes)" not in lines
    assert f"changed: {base}/__init__.py (content)" in lines
    assert f"changed: {base}/server.py (mode 0644 -> 0600)" in lines
    assert "changed: bin/python3 (target python -> elsewhere)" in lines
    assert "changed: bin/activate (it was a file and is a directory)" in lines
    assert "missing: pyvenv.cfg" in lines
    assert "extra: new" in lines
    told = json.loads(upgrade.run("verify", "3", "--json").stdout)
    assert not told["identical"]
    if os.geteuid() == 0:
        os.chown(package / "server.py", 1234, 1234)
        assert "owner 0:0 -> 1234:1234" in upgrade.run("verify", "3").stdout


def test_a_damaged_record_hides_nothing_else_and_stops_no_return(upgrade: SmallUpgrade) -> None:
    (upgrade.store.folder(2) / "generation.json").write_text("{")
    status = upgrade.run("status")
    assert status.code == 0
    assert "generations/2/generation.json is damaged" in status.stdout
    assert "*   3  built" in status.stdout
    assert json.loads(upgrade.run("status", "--json").stdout)["generations"][1]["problem"]
    for command in (["upgrade"], ["diff", "1", "2"], ["gc"]):
        answer = upgrade.run(*command)
        assert answer.code == 1
        assert "Its files are in" in answer.stderr
    assert upgrade.run("rollback", "--to", "1").code == 0
    assert upgrade.outcome() == "old"


def test_a_damaged_confirmation_stops_no_return(upgrade: SmallUpgrade) -> None:
    record = upgrade.store.root / "confirmation.json"
    record.write_text("garbage")
    refused = upgrade.run("upgrade")
    assert refused.code == 1
    assert "`crossgrade rollback` goes back all the same" in refused.stderr
    assert upgrade.run("confirm").code == 1
    assert "is damaged" in upgrade.run("status").stdout
    answer = upgrade.run("rollback")
    assert answer.code == 0, answer.stderr
    assert "is damaged" in answer.stdout
    assert not record.exists()
    assert upgrade.version() == "2.0"
