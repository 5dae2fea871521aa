"""Experiments: what small source files say beforehand, what a trial comes to, the tables and the plan document."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from crossgrade.bench.gpu_memory import still_used, wait_given_back
from crossgrade.errors import TaskError
from crossgrade.failures.signatures import signatures
from crossgrade.gates.experiment_outcome import (
    Explained,
    Speed,
    Trial,
    gpus_of,
    judge_speed,
    judge_trial,
    plain_words,
    variant_words,
)
from crossgrade.gates.experiment_probes import Reading, Target, look
from crossgrade.gates.experiments import Sources, ask_sources, experiments, find_experiment, judge, spelled
from crossgrade.report.experiment_plan import update_plan
from crossgrade.report.experiments import markdown, page, rows_of
from crossgrade.store.experiments import append_record, read_records, records_path

SM120 = Target(12, 0, 8, False, "13.0")


def read(folder: Path, text: str, probe: Mapping[str, Any], target: Target = SM120) -> list[Reading]:
    """What a probe says of a file `engine.py` with this text."""
    (folder / "engine.py").write_text(text)
    places = [{"file": "engine.py", **probe.get("place", {})}]
    row = {"about": "it", "places": places, **{key: value for key, value in probe.items() if key != "place"}}
    return list(look(row, Sources(folder), target, {}))


GUARD = """
def elsewhere():
    return is_sm120_supported()

def applies(batch):
    return (
        (_is_sm90_supported or get_platform().is_sm100)
        and batch > 0
    )

def wide():
    return is_blackwell_supported()

def open_to_all():
    return True
"""


@pytest.mark.parametrize(
    ("function", "target", "answer"),
    [
        ("applies", SM120, "refuses"),
        ("applies", Target(9, 0), "allows"),
        ("applies", Target(10, 3), "allows"),
        ("wide", SM120, "allows"),
        ("wide", Target(9, 0), "refuses"),
        ("elsewhere", SM120, "allows"),
        ("open_to_all", SM120, "unknown"),
        ("gone", SM120, "unknown"),
    ],
)
def test_architectures_that_a_function_asks_for(tmp_path: Path, function: str, target: Target, answer: str) -> None:
    said = read(tmp_path, GUARD, {"kind": "architecture_names", "place": {"name": function}}, target)
    assert [each.answer for each in said] == [answer]
    if (function, answer) == ("applies", "refuses"):
        assert said[0].text == "it: 9.x, 10.x only, not 12.0"
        assert [str(quote) for quote in said[0].quotes] == [
            "engine.py:7: (_is_sm90_supported or get_platform().is_sm100)"
        ]


def test_lists_of_architectures(tmp_path: Path) -> None:
    text = "def old():\n    f(majors=[9, 10])\ndef new():\n    f(majors=[9, 10, 12])\ndef open():\n    f(1)\n"
    for function, answer in {"old": "refuses", "new": "allows", "open": "allows", "gone": "unknown"}.items():
        probe = {"kind": "architecture_list", "place": {"name": function, "keyword": "majors"}}
        assert [each.answer for each in read(tmp_path, text, probe)] == [answer], function


def test_tables_by_architecture(tmp_path: Path) -> None:
    table = "MiB = 1\nSIZES = {9: {2: 1 * MiB, 4: 2}, 10: {2: 1}, 12: {2: 1, 8: 2}}\n"
    probe = {"kind": "architecture_table", "place": {"name": "SIZES"}}
    assert read(tmp_path, table, probe)[0].answer == "allows"
    four = read(tmp_path, table, probe, Target(12, 0, 4, False))[0]
    assert (four.answer, four.text) == ("refuses", "it: with 2, 8 GPUs, not with 4")
    for use, what in {"SIZES[major]": "ends with KeyError: 12", "SIZES.get(major)": "not in use then"}.items():
        (tmp_path / "use.py").write_text(f"from engine import SIZES\n\nx = {use}\n")
        said = read(tmp_path, "SIZES = {9: {2: 1}, 10: {2: 1}}\n", {**probe, "lookup": "use.py"})[0]
        assert said.answer == "refuses"
        assert what in said.text
        assert [quote.line for quote in said.quotes] == [1, 3]


def test_conditions_that_turn_it_off(tmp_path: Path) -> None:
    text = "def f():\n    if (world_size > 2\n            and not full_nvlink):\n        return None\n"
    probe = {"kind": "refused_if", "refuses": "over_pcie_above_two", "condition": "world_size > 2 and not full_nvlink"}
    for target, answer in {
        SM120: "refuses",
        Target(12, 0, 2, False): "allows",
        Target(12, 0, 8, True): "allows",
        Target(12, 0): "depends",
        Target(12, 0, 8): "depends",
    }.items():
        assert read(tmp_path, text, probe, target)[0].answer == answer, target
    assert read(tmp_path, "if world_size > 4 and not full_nvlink: pass\n", probe)[0].answer == "unknown"


@pytest.mark.parametrize(
    ("message", "target", "answer"),
    [
        ("SM 12.x requires CUDA >= 12.9", Target(12, 0, cuda="12.8"), "refuses"),
        ("SM 12.x requires CUDA >= 12.9", SM120, "allows"),
        ("SM 120 requires CUDA >= 12.8", Target(12, 0, cuda="12.8"), "allows"),
        ("SM 12.x requires CUDA >= 12.9", Target(12, 0), "depends"),
        ("SM 12.1+ requires CUDA >= 12.9", Target(12, 0, cuda="12.8"), None),
        ("SM 12.1+ requires CUDA >= 12.9", Target(12, 1, cuda="12.8"), "refuses"),
        ("SM 12.1+ requires CUDA >= 12.9", Target(10, 0, cuda="12.8"), None),
    ],
)
def test_the_cuda_release_that_an_error_asks_for(
    tmp_path: Path, message: str, target: Target, answer: str | None
) -> None:
    text = f"def f():\n    raise RuntimeError({message!r})\n"
    said = read(tmp_path, text, {"kind": "cuda_release", "optional": True}, target)
    assert [each.answer for each in said] == ([answer] if answer else [])


def test_what_is_there_and_what_is_forced(tmp_path: Path) -> None:
    text = 'KINDS = frozenset({"a", "b"})\nclass New: pass\nif self.x == "a":\n    self.ep = self.tp\n'
    assert read(tmp_path, text, {"kind": "defined", "place": {"name": "New"}})[0].answer == "allows"
    assert read(tmp_path, text, {"kind": "defined", "place": {"name": "Newer"}})[0].answer == "refuses"
    forced = {"kind": "forced", "says": "so it is", "optional": True}
    assert read(tmp_path, text, {**forced, "member": "b", "place": {"name": "KINDS"}})[0].quotes[0].line == 1
    assert read(tmp_path, text, {**forced, "member": "c", "place": {"name": "KINDS"}}) == []
    said = read(tmp_path, text, {**forced, "condition": "self.x == 'a'", "statement": "self.ep = self.tp"})[0]
    assert (said.answer, [quote.line for quote in said.quotes]) == ("depends", [3, 4])
    assert read(tmp_path, text, {**forced, "condition": "self.x == 'b'", "statement": "self.ep = self.tp"}) == []


def test_what_cannot_be_read_permits_nothing(tmp_path: Path) -> None:
    said = read(tmp_path, "def f(:\n", {"kind": "defined", "place": {"name": "f"}})
    assert said[0].answer == "unknown"
    assert "engine.py cannot be read" in said[0].text
    assert judge([Reading("allows", ""), said[0]]) == "not known"
    assert judge([said[0], Reading("refuses", "")]) == "refused"
    assert judge([Reading("depends", ""), Reading("allows", "")]) == "can be tried"
    answers = ask_sources(list(experiments().values()), Sources(tmp_path), SM120, {})
    assert {answer.answer for answer in answers} == {"not known"}, "no server is installed"


def test_one_gpu_is_too_few_for_what_is_about_several(tmp_path: Path) -> None:
    alone = Target(12, 0, 1, None, "13.0")
    answers = ask_sources(list(experiments().values()), Sources(tmp_path), alone, {"sglang": "0.5.23"})
    refused = {each.experiment.name for each in answers if "it takes 2 GPUs" in str([r.text for r in each.reasons])}
    assert "nccl_tree" in refused
    assert "eagle3" not in refused


def test_the_table_holds_together() -> None:
    kinds = {signature.kind for signature in signatures()}
    for experiment in experiments().values():
        assert set(experiment.failures) <= kinds, experiment.name
        assert experiment.source
        assert experiment.before
        assert experiment.unblocked
        assert experiment.flags or experiment.environment or experiment.without, experiment.name
    fusion = find_experiment("flashinfer_allreduce_fusion")
    assert spelled(fusion, "0.5.9") == ("--enable-flashinfer-allreduce-fusion",)
    assert spelled(fusion, "0.5.23") == ("--flashinfer-allreduce-fusion-backend", "auto")
    assert spelled(find_experiment("cuda_graph_max_bs_512"), "0.5.23") == ("--cuda-graph-max-bs-decode", "512")
    experts = find_experiment("expert_parallelism_flashinfer")
    for version, more in {
        "0.5.9": (),
        "0.5.13": ("--dp-size", "{gpus}", "--enable-dp-attention"),
        "0.5.23": ("--attn-dp-size", "{gpus}"),
    }.items():
        assert spelled(experts, version) == (*experts.flags, *more)
    assert fusion.shown_by("0.5.9") == fusion.shown_by("0.5.13") != fusion.shown_by("0.5.14")


def test_experiments_of_a_playbook() -> None:
    own = find_experiment("mine", {"flags": ["--fast"], "environment": {"A": 1}})
    assert (own.flags, own.environment, own.concurrencies) == (("--fast",), {"A": "1"}, (1,))
    with pytest.raises(TaskError, match="has no 'flag'"):
        find_experiment("mine", {"flag": ["--fast"]})
    with pytest.raises(TaskError, match="crossgrade's own"):
        find_experiment("eagle3", {"flags": ["--fast"]})
    with pytest.raises(TaskError, match="no experiment 'eagle4'"):
        find_experiment("eagle4")


# ---- launch lines


def test_variants_of_a_launch_line() -> None:
    start = ["numactl", "--cpunodebind=0", "{python}", "-m", "sglang.launch_server"]
    plain = [*start, "--tp", "8", "--cuda-graph-max-bs=128", "--disable-custom-all-reduce", "--port", "{port}"]
    assert gpus_of(plain) == 8
    assert gpus_of(["{python}", "server.py", "--tp", "8"]) == 1, "not a server that is known"
    changed = variant_words(plain, ["--cuda-graph-max-bs", "512", "--attn-dp-size", "{gpus}"], [], 8)
    assert list(changed) == [
        *start,
        *("--tp", "8", "--cuda-graph-max-bs", "512", "--disable-custom-all-reduce", "--port", "{port}"),
        *("--attn-dp-size", "8"),
    ]
    without = variant_words(plain, [], ["--disable-custom-all-reduce"], 8)
    assert list(without) == [*start, "--tp", "8", "--cuda-graph-max-bs=128", "--port", "{port}"]
    assert variant_words(["{python}", "server.py", "{port}"], ["--fast"], [], 1)[-1] == "--fast"
    assert "--cuda-graph-max-bs-decode" in plain_words(plain, "0.5.23")


# ---- outcomes

FUSION = find_experiment("flashinfer_allreduce_fusion")


def speeds(*ratios: float, concurrency: int = 1) -> Speed:
    return Speed(concurrency, tuple((100.0, 100.0 * ratio) for ratio in ratios))


@pytest.mark.parametrize(
    ("measured", "outcome"),
    [
        ((speeds(1.20, 1.22, 1.18),), "unblocked and faster"),
        ((speeds(0.80, 0.82, 0.79),), "unblocked and slower"),
        ((speeds(1.20, 0.85, 1.02),), "unblocked, no difference shown"),
        ((speeds(1.03),), "unblocked, no difference shown"),
        ((speeds(1.10),), "unblocked and faster"),
        ((speeds(0.90),), "unblocked and slower"),
        ((speeds(1.24, 1.23, 1.25), speeds(0.7, 0.71, 0.69, concurrency=8)), "unblocked, faster and slower"),
        ((speeds(1.24, 1.23, 1.25), speeds(1.0, 1.1, 0.9, concurrency=8)), "unblocked and faster"),
    ],
)
def test_outcomes_of_what_was_measured(measured: tuple[Speed, ...], outcome: str) -> None:
    result = judge_trial(FUSION, Trial(speeds=measured), noise=0.05)
    assert result.outcome == outcome
    assert "concurrency 1: 100 ->" in result.reason


def test_bounds_are_told() -> None:
    measured = judge_speed(speeds(1.20, 1.22, 1.18), 0.05)
    assert measured.low is not None
    assert measured.high is not None
    assert 1.15 < measured.low < measured.ratio < measured.high < 1.25
    assert judge_speed(speeds(1.2), 0.05).low is None


def test_blocked_as_before_or_in_another_way() -> None:
    old = Explained("back_end_refuses_gpu", "it takes other GPUs", "RuntimeError: only SM90")
    new = Explained("gpu_out_of_memory", "too little memory", "CUDA out of memory")
    said = judge_trial(FUSION, Trial("the server ended while starting", explained=(new, old), log="/log"), 0.05)
    assert said.outcome == "still blocked"
    assert "the old failure (back_end_refuses_gpu): it takes other GPUs" in said.reason
    assert said.evidence == ("CUDA out of memory", "RuntimeError: only SM90", "log: /log")
    said = judge_trial(FUSION, Trial("it ended", explained=(new,)), 0.05)
    assert "another failure than before (gpu_out_of_memory)" in said.reason
    said = judge_trial(FUSION, Trial("it ended", last_words=("a", "Strange end", "")), 0.05)
    assert said.reason == "it ended; no known failure; its last words: Strange end"
    said = judge_trial(FUSION, Trial(refusal="Disabling flashinfer allreduce fusion permanently."), 0.05)
    assert (said.outcome, said.evidence[0]) == ("still blocked", "Disabling flashinfer allreduce fusion permanently.")
    assert judge_trial(FUSION, Trial(unshown="workspace initialized"), 0.05).outcome == "still blocked"


def test_memory_that_is_given_back() -> None:
    assert still_used({0: 1 << 30}, {0: (1 << 30) + (100 << 20), 1: 9 << 30}) == ""
    assert still_used({0: 1 << 30}, {0: 9 << 30}) == "GPU 0 8.0 GiB"
    answers = iter([{0: 9 << 30}, {0: 1 << 30}])
    assert wait_given_back({0: 1 << 30}, lambda: next(answers), timeout=60) == ""
    assert wait_given_back({0: 1 << 30}, lambda: {0: 9 << 30}, timeout=0) == "GPU 0 8.0 GiB"
    assert wait_given_back({}, lambda: {0: 9 << 30}, timeout=0) == "", "no driver, nothing to wait for"


# ---- records, tables, the plan document


def record(experiment: str = "eagle3", **others: Any) -> dict[str, Any]:
    return {
        "key": f"key-{experiment}",
        "experiment": experiment,
        "title": "EAGLE-3",
        "when": "2026-12-02T10:00:00Z",
        "generation": 1,
        "version": "sglang 0.5.9",
        "outcome": "unblocked and slower",
        "reason": "concurrency 1: 82 -> 54.1 tokens/s",
        "evidence": ["log: /x"],
        **others,
    }


def test_records_survive_a_torn_line(tmp_path: Path) -> None:
    assert read_records(tmp_path).records == ()
    append_record(tmp_path, record())
    with records_path(tmp_path).open("ab") as file:
        file.write(b'{"key": "half')
    append_record(tmp_path, record(outcome="still blocked"))
    found = read_records(tmp_path)
    assert [each["outcome"] for each in found.records] == ["unblocked and slower", "still blocked"]
    assert len(found.unreadable) == 1
    assert found.unreadable[0].endswith("records.jsonl:2 is no record of an experiment")
    last = found.last("key-eagle3")
    assert last is not None
    assert last["outcome"] == "still blocked"
    assert found.last("other") is None


NEWER = record(
    generation=2,
    when="2026-12-03T10:00:00Z",
    version="sglang 0.5.23",
    outcome="unblocked and faster",
    reason="concurrency 1: 89.5 -> 111 tokens/s <b> | x",
)


def test_tables_before_and_after() -> None:
    rows = rows_of(experiments(), [record(), NEWER], {})
    eagle = next(row for row in rows if row.name == "eagle3")
    assert eagle.before == "unblocked and slower (generation 1): concurrency 1: 82 -> 54.1 tokens/s"
    assert eagle.outcome == "unblocked and faster"
    text = markdown(rows, "here")
    assert "| unblocked and faster | concurrency 1: 89.5 -> 111 tokens/s &lt;b> \\| x |" in text
    assert "| 89.5 tokens/s, and 82 before |" in text, "what is known from before, where nothing is on record"
    html = page(rows, "here")
    assert "89.5 -&gt; 111 tokens/s &lt;b&gt;" in html
    assert "<b>" not in html
    assert "http" not in html.replace("https://github.com", ""), "it needs no network"
    assert len([row for row in rows if not row.outcome]) == len(experiments()) - 1


def test_the_plan_is_updated_and_notes_survive() -> None:
    first = update_plan("", rows_of({}, [record()], {}))
    assert "- Now: **unblocked and slower**: concurrency 1: 82 -> 54.1 tokens/s" in first
    note = "Ask Kim about the draft model.\n\n- 2026-01-01T00:00:00Z, not ours <!-- crossgrade -->\n"
    mine = first.replace("<!-- notes -->\n", f"<!-- notes -->\n{note}").replace(
        "# Plan: what to try again", "# Our plan"
    )
    mine += "\nA word at the end.\n"
    second = update_plan(mine, rows_of({}, [NEWER, record("mine", title="Mine")], {}))
    assert note in second
    assert second.startswith("# Our plan\n")
    assert "\nA word at the end.\n" in second
    assert "- Now: **unblocked and faster**" in second
    # what the document says of an earlier run stays, though its record is not among these
    history = [line for line in second.splitlines() if line.startswith("- 2026-12-0")]
    assert len(history) == 3
    assert "generation 1 (sglang 0.5.9): unblocked and slower" in history[0]
    assert "generation 2 (sglang 0.5.23): unblocked and faster" in history[1]
    assert second.count("<!-- crossgrade: experiment eagle3 -->") == 1
    assert second.count("<!-- crossgrade: experiment mine -->") == 1
    assert update_plan(second, rows_of({}, [NEWER, record("mine", title="Mine")], {})) == second
    assert update_plan(second, ()) == second, "what is no longer known stays"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (("<!-- crossgrade: end of eagle3 -->\n", ""), "end of eagle3"),
        (("<!-- end of notes -->\n", ""), "notes of eagle3"),
        (("<!-- notes -->\n", ""), "notes of eagle3"),
    ],
)
def test_a_damaged_plan_is_not_guessed_at(damage: tuple[str, str], words: str) -> None:
    whole = update_plan("", rows_of({}, [record(), record("mine")], {}))
    broken = whole.replace(*damage, 1)
    with pytest.raises(ValueError, match=words):
        update_plan(broken, rows_of({}, [NEWER], {}))
    with pytest.raises(ValueError, match="eagle3 is there twice"):
        update_plan(whole + whole, rows_of({}, [NEWER], {}))
