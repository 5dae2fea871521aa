"""Bisects with real generations and real launches of a server that sleeps: what slows it down must be found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.bisecting import QUESTION, Bisected, PartDist, bisected, name_of
from tests.support.commands import PROGRAM, processes_below, snapshot

from crossgrade.bench.delta_debugging import most_tests

pytestmark = pytest.mark.slow


def parts(count: int, **others: PartDist) -> dict[str, PartDist]:
    return {name_of(number): PartDist() for number in range(count)} | {
        name.replace("_", "-"): part for name, part in others.items()
    }


def rejected(made: Bisected) -> None:
    """The upgrade to the new versions, which its benchmark fails."""
    answer = made.run("upgrade", "--yes")
    assert answer.code == 2, answer.stdout + answer.stderr
    assert made.store.active() == 2
    assert made.store.generation(3).state == "rejected"


def test_one_slow_dist_among_thirty(tmp_path: Path) -> None:
    with bisected(tmp_path, parts(30), parts(30, part_17=PartDist(factor=1.25))) as made:
        rejected(made)
        before = snapshot(made.store.venv(2)), snapshot(made.store.venv(3))
        dry = json.loads(made.bisect("--dry-run").stdout)
        assert len(dry["groups"]) == 30
        assert dry["tests_for_one_cause"] == 6
        assert made.store.numbers() == [1, 2, 3], "a dry run builds nothing"
        result = made.result()
        assert result["outcome"] == "found"
        assert result["changes"] == ["part-17 1 -> 2"]
        assert not result["unseparated"]
        # log2 of 30, rounded up, and one to see that what is left fails by itself
        assert result["builds"] <= most_tests(30) == 6
        assert (snapshot(made.store.venv(2)), snapshot(made.store.venv(3))) == before
        assert made.store.active() == 2
        built = [made.store.generation(number) for number in made.store.numbers() if number > 3]
        assert len(built) == result["builds"]
        assert {(one.state, one.contents["trial"]) for one in built} == {("rejected", "bisect 2..3")}
        # the same question again: everything is on record
        again = made.result()
        assert (again["changes"], again["builds"]) == (result["changes"], 0)
        # what was built for it goes with gc, and the answers stay
        assert made.run("gc").code == 0
        assert made.store.numbers() == [1, 2]


def test_two_that_only_together_are_slow(tmp_path: Path) -> None:
    newer = parts(6, part_01=PartDist(tags=["x"]), part_04=PartDist(tags=["y"]))
    with bisected(tmp_path, parts(6), newer) as made:
        rejected(made)
        result = made.result()
        assert result["changes"] == ["part-01 1 -> 2", "part-04 1 -> 2"]
        assert not result["unseparated"]
        assert result["builds"] <= most_tests(6, 2)


def test_no_culprit_is_said(tmp_path: Path) -> None:
    with bisected(tmp_path, parts(4), parts(4)) as made:
        answer = made.run("upgrade", "--yes", "-e", "first=true")  # without its benchmark
        assert answer.code == 0, answer.stderr
        answer = made.bisect()
        assert answer.code == 0, answer.stderr
        result = answer.of_kind("bisect_ended")[0]
        assert result["outcome"] == "no loss"
        assert "there is no loss to look for" in result["reason"]
        assert (result["builds"], result["changes"]) == (0, [])


@pytest.mark.parametrize("what", ["variable", "option", "toolkit"])
def test_what_is_no_dist(tmp_path: Path, what: str) -> None:
    with bisected(
        tmp_path,
        parts(2),
        parts(2),
        variables={"TOKEN_FACTOR": "1.3", "OTHER": "1"} if what == "variable" else {},
        options=["--quiet", "--slow"] if what == "option" else (),
    ) as made:
        if what == "toolkit":
            home = made.store.toolkit("cafe0123cafe0123") / "cuda_home"
            home.mkdir(parents=True)
            (home / "factor").write_text("1.3")
            made.newer = {**made.newer, "toolkit": "cafe0123cafe0123"}
        rejected(made)
        result = made.result()
        expected = {
            "variable": "variable TOKEN_FACTOR (added)",
            "option": "option --slow (added)",
            "toolkit": "the toolkit absent -> cafe0123cafe",
        }
        assert result["changes"] == [expected[what]]
        assert result["outcome"] == "found"


def test_sets_that_do_not_resolve(tmp_path: Path) -> None:
    """The old version of part-02 is gone from the index: without the new one, nothing can be built."""
    newer = parts(5, part_03=PartDist(factor=1.3, requires=["part-04>=2"]))
    with bisected(tmp_path, parts(5), newer) as made:
        rejected(made)
        (tmp_path / "wheels" / "part_02-1-py3-none-any.whl").unlink()
        dry = json.loads(made.bisect("--dry-run").stdout)
        needing = next(group for group in dry["groups"] if group["changes"] == ["part-03 1 -> 2"])
        assert needing["needs"] == ["part-04 1 -> 2"]
        answer = made.bisect()
        result = answer.of_kind("bisect_ended")[0]
        assert result["outcome"] == "found"
        assert result["changes"] == ["part-02 1 -> 2", "part-03 1 -> 2"]
        assert result["unseparated"] == ["part-02 1 -> 2"]
        assert result["moved_with_them"] == ["part-04 1 -> 2"]
        unresolved = [test for test in answer.of_kind("bisect_test") if test["answer"] == "unresolved"]
        assert {test["details"]["stage"] for test in unresolved} == {"resolve"}
        assert "part-02" in unresolved[0]["reason"]


def shared_object(folder: Path, name: str, needs: str = "") -> bytes:
    """A library; with `needs`, one that is linked to another library beside it."""
    source = folder / "source.c"
    source.write_text(f"int {name}(void) {{ return 1; }}\n")
    linked = ["-Wl,--no-as-needed", f"-L{folder}", f"-l{needs}", "-Wl,-rpath,$ORIGIN"] if needs else []
    made = folder / f"lib{name}.so"
    command = ["gcc", "-shared", "-fPIC", "-o", str(made), str(source), *linked, f"-Wl,-soname,{made.name}"]
    subprocess.run(command, check=True)
    return made.read_bytes()


def test_sets_that_the_abi_gate_refuses(tmp_path: Path) -> None:
    """part-01 2 is linked to a library that part-00 has since 2, and its metadata does not say so."""
    library = shared_object(tmp_path, "since2")
    user = shared_object(tmp_path, "user", needs="since2")
    newer = parts(
        3,
        part_00=PartDist(files={"libsince2.so": library}),
        part_01=PartDist(factor=1.3, files={"libuser.so": user}),
    )
    with bisected(tmp_path / "made", parts(3), newer) as made:
        rejected(made)
        answer = made.bisect()
        result = answer.of_kind("bisect_ended")[0]
        assert result["changes"] == ["part-00 1 -> 2", "part-01 1 -> 2"]
        assert result["unseparated"] == ["part-00 1 -> 2"]
        refused = next(test for test in answer.of_kind("bisect_test") if test["answer"] == "unresolved")
        assert refused["changes"] == ["part-01 1 -> 2"]
        assert refused["details"]["stage"] == "abi_check"
        assert "libsince2.so" in refused["reason"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_bisect_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    with bisected(tmp_path, parts(8), parts(8, part_05=PartDist(factor=1.3))) as made:
        rejected(made)
        seen = interrupted(made, number)
        assert not processes_below(made.root)
        answer = made.bisect()
        assert answer.code == 0, answer.stderr
        tests = answer.of_kind("bisect_test")
        assert [test["answer"] for test in tests if test["recorded"]] == [test["answer"] for test in seen]
        result = answer.of_kind("bisect_ended")[0]
        assert result["changes"] == ["part-05 1 -> 2"]
        assert result["tests"] <= 1 + most_tests(8)
        assert all(made.store.generation(one).state != "building" for one in made.store.numbers())
        assert made.store.active() == 2


def interrupted(made: Bisected, number: signal.Signals) -> list[dict[str, Any]]:
    """A bisect that is stopped in its third test, when something of it is built; the tests that it has told of."""
    values = json.dumps({"index": made.index.url, **made.newer})
    argv = [str(PROGRAM), "bisect", "--playbook", str(made.folder / "play.yml"), "--root", str(made.root)]
    argv += ["-e", values, *QUESTION, "--json"]
    environment = {**os.environ, "UV_CACHE_DIR": str(made.folder / "uv-cache"), "TOKEN_FACTOR": "1"}
    seen: list[dict[str, Any]] = []
    with subprocess.Popen(
        argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            seen += [event] if event["event"] == "bisect_test" else []
            if len(seen) == 2 and "installing" in str(event.get("message", "")):
                process.send_signal(number)
        code = process.wait()
    assert code == (99 if number == signal.SIGINT else -number)
    return seen
