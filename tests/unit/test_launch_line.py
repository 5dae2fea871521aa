"""Launch lines in groups of words, their translation, and the tables that it comes from."""

from __future__ import annotations

import pytest

from crossgrade.facts.launch_line import Group, LaunchLine, grouped, is_option, reached, read_line, translate
from crossgrade.facts.units import ExecStart, exec_start
from crossgrade.gates.launch_unit import judge_unit
from crossgrade.knowledge import table

SECRET = "sk-abcdefghijklmnopqrstuvwxyz"  # noqa: S105 - made up


def line(text: str) -> LaunchLine:
    found = read_line(["{python}", "-m", "sglang.launch_server", *text.split()])
    assert found is not None
    return found


def translated(text: str, version: str = "0.5.23") -> str:
    return " ".join(translate(line(text), version).line.words[3:])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("--cuda-graph-max-bs 128", "--cuda-graph-max-bs-decode 128"),
        ("--cuda-graph-max-bs=128", "--cuda-graph-max-bs-decode 128"),
        ("--cuda-graph-bs 1 2 4 --tp 2", "--cuda-graph-bs-decode 1 2 4 --tp 2"),
        ("--enable-flashinfer-allreduce-fusion", "--flashinfer-allreduce-fusion-backend auto"),
        ("--disable-cuda-graph", "--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled"),
        ("--nsa-prefill-cp-mode round-robin-split", "--cp-strategy interleave"),
        ("--fp4-gemm-backend cutlass", "--fp4-gemm-backend flashinfer_cutlass"),
        ("--fp4-gemm-backend marlin", "--fp4-gemm-backend marlin"),
        ("--enable-piecewise-cuda-graph --tp 2", "--tp 2"),
        # a new option that somebody wrote already counts
        ("--cuda-graph-max-bs 8 --cuda-graph-max-bs-decode 16", "--cuda-graph-max-bs-decode 16"),
        ("--cuda-graph-max-bs-decode 128", "--cuda-graph-max-bs-decode 128"),
        ("--tp 2 --served-model-name a b", "--tp 2 --served-model-name a b"),
    ],
)
def test_what_0_5_23_calls_it(before: str, after: str) -> None:
    assert translated(before) == after
    assert translated(after) == after


def test_it_depends_on_the_version() -> None:
    assert translated("--cuda-graph-max-bs 8", "0.5.13") == "--cuda-graph-max-bs 8"
    assert translated("--cuda-graph-max-bs 8", "0.5.14") == "--cuda-graph-max-bs-decode 8"
    assert translated("--piecewise-cuda-graph-compiler eager", "0.5.14") == "--cuda-graph-tc-compiler eager"
    for unknown in ("", "main"):
        assert translated("--cuda-graph-max-bs 8", unknown) == "--cuda-graph-max-bs 8"
    assert translated("--enforce-piecewise-cuda-graph", "0.5.21") == "--cuda-graph-backend-prefill tc_piecewise"
    assert translated("--enforce-piecewise-cuda-graph", "0.5.22") == "--enforce-piecewise-cuda-graph"
    twice = translate(line("--piecewise-cuda-graph-compiler eager"), "0.5.23")
    assert twice.advice[0][0] == "--cuda-graph-tc-compiler", "what the first became is gone, too"


def test_what_only_a_person_can_replace_stays() -> None:
    found = translate(line("--torchao-config int8wo"), "0.5.23")
    assert found.line == line("--torchao-config int8wo")
    assert found.rewritten == ()
    assert found.advice[0][0] == "--torchao-config"


def test_groups_of_words() -> None:
    assert [group.words for group in grouped(["m", "--a", "-1", "x", "--b=2", "-c"])] == [
        ("m",), ("--a", "-1", "x"), ("--b=2",), ("-c",),
    ]  # fmt: skip
    assert [is_option(word) for word in ("-1", "-.5", "--x", "-x", "-", "")] == [False, False, True, True, False, False]
    assert (Group(("--b=2", "3")).option, Group(("--b=2", "3")).values) == ("--b", ("2", "3"))
    for words in (("--api-key", SECRET), (f"--api-key={SECRET}",), (SECRET,), ("--x", "a", SECRET)):
        assert SECRET not in " ".join(Group(words).concealed().words)
    assert Group(("--max-total-tokens", "5000")).concealed().words == ("--max-total-tokens", "5000")


def test_lines_that_start_a_server() -> None:
    for words, own in (
        ("{python} -m sglang.launch_server --tp 2", 1),
        ("{venv}/bin/sglang serve m --tp 2", 2),
        ("/usr/bin/numactl -N 0 {python} -m sglang.launch_server --tp 2", 1),
        ("/srv/env/bin/python /srv/env/bin/sglang serve m --tp 2", 2),
    ):
        found = read_line(words.split())
        assert found is not None, words
        assert len(found.groups) == own
        assert found.words == tuple(words.split())
    assert read_line(["/usr/local/bin/serve.sh"]) is None


def test_the_line_of_a_unit() -> None:
    own = "[Service]\nExecStart=/srv/e/bin/python -m sglang.launch_server \\\n  --cuda-graph-max-bs 8\n"
    found = exec_start([("/etc/a", own), ("/etc/b.conf", "[Service]\nExecStart=\nExecStart=-/usr/bin/x 'a b'\n")])
    assert found == ExecStart(("/usr/bin/x", "a b"), "/etc/b.conf")
    assert exec_start([("/etc/a", "[Service]\nExecStart=\n")]) is None
    (finding,) = judge_unit("q.service", exec_start([("/etc/a", own)]), "0.5.23")
    assert finding.level == "warning"
    assert "--cuda-graph-max-bs 8 -> --cuda-graph-max-bs-decode 8" in finding.message
    assert judge_unit("q.service", exec_start([("/etc/a", own)]), "0.5.9")[0].level == "note"
    assert "look there" in judge_unit("q.service", found, "0.5.23")[0].message


def test_rows_of_the_table_say_one_thing_each() -> None:
    seen: dict[object, str] = {}
    for row in table("launch_translations"):
        kinds = [kind for kind in ("becomes", "values", "drop") if kind in row]
        assert len(kinds) <= 1, row
        assert kinds or row.get("advice"), row
        assert row["source"]
        key = (row["engine"], row["option"], "values" in row)
        before, seen[key] = seen.get(key), str(row["since"])
        assert before is None or (reached(before, seen[key]) and before != seen[key]), "the later one comes last"
        if isinstance(words := row.get("becomes"), list):
            assert str(words[0]).startswith("--")
            assert row["option"] not in words
