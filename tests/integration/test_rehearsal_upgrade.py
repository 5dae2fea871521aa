"""The rehearsal as a user meets it, from a fresh root to a rollback. The tests run in order on one root.

Its benchmark has a wide limit here, and the slow candidate does four times the work instead of a quarter more: what a
busy machine measures cannot mistake one for the other. `test_14`, a slow one, has the playbook's own figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import REHEARSAL, Answer, crossgrade, processes_below, snapshot

from crossgrade.store.layout import Store
from crossgrade.store.manifest import build_manifest

FAR_APART = ("-e", "allowed_loss=0.5", "-e", "slow_work=4", "-e", "benchmark_requests=12")
ACTIVE = ("change", "may change", "check")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("rehearsal") / "root"
    yield folder
    assert processes_below(folder) == []


def run(command: str, root: Path, *arguments: str | Path) -> Answer:
    more = FAR_APART if command in ("plan", "upgrade") else ()
    return crossgrade(command, "--playbook", REHEARSAL, "--root", root, *more, *arguments)


def status(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("status", root, "--json").stdout)
    return found


def planned(answer: Answer) -> list[tuple[str, str, str]]:
    tasks = answer.of_kind("plan")[-1]["plan"]["tasks"]
    return [(task["task"], task["action"], task["summary"]) for task in tasks if task["action"] in ACTIVE]


def happened(answer: Answer) -> list[tuple[str, str]]:
    return [
        (event["task"], event["summary"]) for event in answer.of_kind("task_result") if event["status"] == "changed"
    ]


def failing(root: Path, fault: str, *arguments: str) -> Answer:
    before = build_manifest(root / "ml-env").digest if (root / "ml-env").exists() else None
    active = status(root)["active"]
    answer = run("upgrade", root, "--json", "-e", f"rehearsal_fault={fault}", *arguments)
    assert answer.code == 2, answer.stderr
    assert answer.recap["failed"] == 1
    assert status(root)["active"] == (active or 1)
    assert "untouched" in answer.ended["working_environment"]
    if before is not None:
        assert build_manifest(Store(root / "store").venv(active)).digest == before
    assert status(root)["interrupted"] is None
    assert answer.of_kind("prediction_differs") == []
    return answer


def test_01_a_plan_on_a_fresh_machine_changes_nothing(root: Path) -> None:
    answer = run("plan", root, "--json", "--detailed-exitcode")
    assert answer.code == 2, answer.stderr
    assert not root.exists()
    assert len(planned(answer)) >= 10


def test_02_an_old_extension_fails_the_abi_gate(root: Path) -> None:
    foreseen = planned(run("plan", root, "--json", "-e", "rehearsal_fault=old_extension"))
    answer = failing(root, "old_extension")
    assert answer.ended["reason"].startswith("task 'Gate: every library and symbol is there' failed")
    evidence = json.dumps(answer.ended["evidence"])
    assert "libcudart.so.12" in evidence
    assert "_kernels.abi3.so" in evidence
    # what the plan foresaw up to the gate is what happened, and nothing else
    changes = [(task, summary) for task, action, summary in foreseen if action == "change"]
    done = happened(answer)
    assert done == changes[: len(done)]


def test_03_code_for_another_gpu_fails_the_architecture_gate(root: Path) -> None:
    answer = failing(root, "wrong_arch")
    assert "there is code for the GPU" in answer.ended["reason"]
    evidence = json.dumps(answer.ended["evidence"])
    assert "sm_120" in evidence
    assert "sm_90" in evidence
    assert "_kernels.abi3.so" in evidence


def test_04_a_broken_import_fails_the_smoke_gate(root: Path) -> None:
    answer = failing(root, "broken_import")
    assert "everything imports" in answer.ended["reason"]
    assert "ImportError: cannot import name" in json.dumps(answer.ended["evidence"])


def test_05_a_slow_server_fails_the_benchmark_gate(root: Path) -> None:
    answer = failing(root, "slow")
    assert "no slower than the working environment" in answer.ended["reason"]
    assert "tokens/s" in answer.ended["reason"]
    assert "ratio" in answer.ended["reason"]


def test_06_the_upgrade_does_what_the_plan_foresaw(root: Path) -> None:
    before = snapshot(root)
    plan = run("plan", root, "--json")
    assert snapshot(root) == before, "a plan changed a file"
    answer = run("upgrade", root, "--json")
    assert answer.code == 0, answer.stderr
    assert happened(answer) == [(task, summary) for task, action, summary in planned(plan) if action == "change"]
    assert answer.of_kind("prediction_differs") == []
    active = status(root)["active"]
    assert active is not None
    assert active > 1
    report = json.loads(Path(answer.ended["report"]).read_text())
    assert {verdict["outcome"] for verdict in report["verdicts"]} == {"passed"}
    assert len(report["verdicts"]) == 5
    page = Path(answer.ended["report"]).with_suffix(".html").read_text()  # of a real benchmark: plots, every sample
    assert page.count("</figure>") == page.count("<svg") == 6
    assert "the samples were not read" not in page
    assert "Concurrency 1" in page
    assert (root / "ml-env" / "bin" / "python").exists()


def test_07_the_second_run_changes_nothing(root: Path) -> None:
    before = snapshot(root / "store" / "generations")
    plan = run("plan", root, "--json", "--detailed-exitcode")
    assert plan.code == 0, planned(plan)
    assert planned(plan) == []
    answer = run("upgrade", root, "--json")
    assert answer.code == 0
    assert answer.recap["changed"] == 0
    assert snapshot(root / "store" / "generations") == before
    assert "changed=0" in run("upgrade", root).stdout


def test_08_rollback_returns_and_every_file_is_as_it_was(root: Path) -> None:
    answer = run("rollback", root)
    assert answer.code == 0, answer.stderr
    assert status(root)["active"] == 1
    verified = run("verify", root, "--full")
    assert verified.code == 0, verified.stdout
    assert "all identical to its manifest" in verified.stdout
    assert run("rollback", root).code == 1, "there is nothing before generation 1"


def test_09_the_next_upgrade_activates_what_is_there(root: Path) -> None:
    candidates = [generation["number"] for generation in status(root)["generations"]]
    answer = run("upgrade", root, "--json")
    assert answer.code == 0, answer.stderr
    assert [event["name"] for event in answer.of_kind("task_result") if event["status"] == "changed"] == [
        "Activate the candidate"
    ]
    assert [generation["number"] for generation in status(root)["generations"]] == candidates


def test_10_a_saved_plan_is_carried_out_or_refused(root: Path, tmp_path: Path) -> None:
    assert run("rollback", root).code == 0
    saved = tmp_path / "plan.json"
    assert run("plan", root, "-o", saved).code == 0
    assert run("upgrade", root, "--plan", saved).code == 0
    refused = run("upgrade", root, "--plan", saved)
    assert refused.code == 1
    assert "active generation" in refused.stderr


def test_11_verify_names_what_was_changed(root: Path) -> None:
    package = next((root / "ml-env" / "lib").glob("python*/site-packages/rehearsal_engine/model.py"))
    text = package.read_bytes()
    package.write_bytes(text + b"\n# changed\n")
    found = run("verify", root)
    assert found.code == 2
    assert "rehearsal_engine/model.py" in found.stdout
    package.write_bytes(text)
    assert run("verify", root).code == 0, "the content is the same again, whatever its times"


def test_12_gc_frees_the_rejected_and_keeps_the_way_back(root: Path) -> None:
    active = status(root)["active"]
    assert run("gc", root, "--keep", "0").code == 0
    assert [generation["number"] for generation in status(root)["generations"]] == [1, active]
    assert run("plan", root, "--detailed-exitcode").code == 0, "gc took something that a plan needs"


def test_13_history_tells_the_whole_story(root: Path) -> None:
    text = run("history", root).stdout
    assert "rolled back" in text
    assert "active: the plain directory -> generation 1" in text


@pytest.mark.slow
def test_14_a_quarter_more_work_is_told_from_a_tenth(root: Path) -> None:
    answer = failing(root, "slow", "-e", "allowed_loss=0.1", "-e", "slow_work=1.25", "-e", "benchmark_requests=40")
    assert "no slower than the working environment" in answer.ended["reason"]
