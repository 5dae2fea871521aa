"""Launch lines against the argument parsers of the two real SGLang environments, which are asked and not started."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

import pytest

from crossgrade.facts.launch_line import Group, grouped, read_line, translate
from crossgrade.gates.launch import (
    Examination,
    LaunchQuestion,
    ask_parser,
    for_the_parser,
    judge_launch,
    parser_row,
    read_parser,
)
from crossgrade.gates.verdict import Verdict
from crossgrade.inspect.dists import site_packages
from crossgrade.inspect.launch_options import read_options
from crossgrade.knowledge import Row, table

KEPT = Path("~/.cache/crossgrade/oracle").expanduser()
STACKS = {"0.5.9": "sglang-CUDA-12.8", "0.5.23": "sglang-CUDA-13"}
SECRET = "sk-abcdefghijklmnopqrstuvwxyz"  # noqa: S105 - made up

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not all((KEPT / name).is_dir() for name in STACKS.values()),
        reason="tests/oracle/test_serving_stacks.py makes the two environments",
    ),
]

START = "{python} -m sglang.launch_server --model-path /models/q --host {host} --port {port}"
# what ran on eight RTX PRO 6000, and what was tried there
STORY = (
    "--tp 8 --quantization modelopt_fp4 --attention-backend flashinfer --cuda-graph-max-bs 128",
    "--tp-size 8 --enable-flashinfer-allreduce-fusion --disable-custom-all-reduce",
    "--tp-size 8 --ep-size 8 --moe-a2a-backend flashinfer --moe-runner-backend flashinfer_cutlass",
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path /models/d --speculative-num-steps 3 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
    "--enable-torch-symm-mem --enable-symm-mem --enable-dp-attention --dp-size 8",
)


@cache
def environment_of(version: str) -> Path:
    return KEPT / STACKS[version]


@cache
def sglang() -> Row:
    row = parser_row("sglang")
    assert row is not None
    return row


def ask(version: str, groups: tuple[Group, ...], folder: Path) -> Examination:
    """The parser's own answers; whatever it writes, it writes into `folder`."""
    home = folder / version
    home.mkdir()
    variables = {"PATH": os.environ["PATH"]}
    return ask_parser(
        environment_of(version) / "bin" / "python", sglang(), groups,
        file="", folder=home, environment=variables, timeout=300,
    )  # fmt: skip


def judged(version: str, options: str, folder: Path, *, translating: bool = False) -> Verdict:
    line = read_line([*START.split(), *options.split()])
    assert line is not None
    translation = translate(line, version)
    groups, _, _ = for_the_parser(translation.line if translating else line, sglang())
    question = LaunchQuestion("sglang", version, translation, translating)
    verdict = judge_launch(question, ask(version, groups, folder))
    by_source = judge_launch(question, read_parser(site_packages(environment_of(version)), sglang(), groups))
    assert by_source.outcome == verdict.outcome, by_source.reason
    return verdict


@pytest.mark.parametrize("options", STORY)
def test_the_lines_of_the_story(options: str, tmp_path: Path) -> None:
    """Each works in 0.5.9; in 0.5.23 it does as translated, and without it where nothing was renamed."""
    before = judged("0.5.9", options, tmp_path)
    assert before.passed, before.reason
    (tmp_path / "0.5.9").rename(tmp_path / "done")
    after = judged("0.5.23", options, tmp_path, translating=True)
    assert after.passed, after.reason
    if "--cuda-graph-max-bs" in options:
        (tmp_path / "0.5.23").rename(tmp_path / "done2")
        as_it_was = judged("0.5.23", options, tmp_path)
        assert as_it_was.outcome == "failed"
        assert "--cuda-graph-max-bs is no option of sglang 0.5.23 any more" in as_it_was.reason


def test_faults_are_found_and_no_secret_is_told(tmp_path: Path) -> None:
    options = f"--api-key {SECRET} --mem-fraction-static much --disable-radix-cache yes --quantization qoq --no-such 1"
    verdict = judged("0.5.23", options, tmp_path)
    failures = {finding.subject for finding in verdict.of_level("failure")}
    assert failures == {"--mem-fraction-static", "--disable-radix-cache", "--quantization", "--no-such"}
    assert SECRET not in str(verdict.to_json())
    assert judged("0.5.9", "--quantization qoq", tmp_path).passed


@pytest.mark.parametrize("version", STACKS)
def test_the_source_declares_what_the_parser_has(version: str, tmp_path: Path) -> None:
    """Names, numbers of values and choices of every option, as far as the source shows them."""
    site = site_packages(environment_of(version))
    row = sglang()
    read = read_options(site, row["sources"], row["constants"])  # type: ignore[arg-type]
    own = {name: option for option in read.options for name in option.names}
    asked = ask(version, (), tmp_path)
    assert {*own} | {"-h", "--help"} == {*asked.options}
    assert read.nameless == 0
    assert len(read.unread) < 10
    assert {name for name in own if own[name].deprecated} == {name for name, text in asked.options.items() if text}
    assert Path(sys.prefix) != environment_of(version)


def test_every_new_name_is_an_option_of_the_new_version(tmp_path: Path) -> None:
    """What the table writes in place of an option is taken by the parser itself, with a value that the old one took."""
    old = site_packages(environment_of("0.5.9"))
    row = sglang()
    options = {n: o for o in read_options(old, row["sources"], row["constants"]).options for n in o.names}  # type: ignore[arg-type]
    line = read_line(START.split())
    assert line is not None
    groups: list[Group] = []
    gone: list[Group] = []
    for entry in table("launch_translations"):
        name = str(entry["option"])
        known = options.get(name)
        if "drop" in entry or "values" in entry or "becomes" not in entry:
            if known is not None and "values" not in entry:
                gone.append(Group((name,)))
            continue
        mapped = entry.get("map")
        values = next(iter(mapped), "") if isinstance(mapped, dict) else ""
        if not values and known is not None and not known.switch:
            values = known.choices[0] if known.choices else "1"
        elif not values and "{values}" in entry["becomes"]:  # type: ignore[operator] # of a version between the two
            values = {"--cuda-graph-tc-compiler": "eager"}.get(name, "1")
        written = translate(type(line)("sglang", (), grouped([name, *([values] if values else [])])), "0.5.23")
        if not written.advice:
            groups += written.line.groups
    asked = ask("0.5.23", (*groups, *gone), tmp_path)
    assert len(groups) > 20
    for each in asked.asked[: len(groups)]:
        assert each.group.option in asked.options, each
        assert each.error is None, each
    assert [each.group.option for each in asked.asked[len(groups) :] if each.group.option in asked.options] == []


def test_what_is_gone_is_in_the_table() -> None:
    """Every option that 0.5.9 has and 0.5.23 does not is translated or explained, but for those that need no word."""
    row = sglang()
    names = [
        {
            name
            for option in read_options(site_packages(environment_of(version)), row["sources"], row["constants"]).options  # type: ignore[arg-type]
            for name in option.names
        }
        for version in STACKS
    ]
    known = {str(entry["option"]) for entry in table("launch_translations")}
    left = {name for name in names[0] - names[1] - known if not name.startswith("--ds-")}
    assert left == {
        "--custom-sigquit-handler",  # for the engine in Python only
        "--debug-tensor-dump-inject",
        "--hybrid-kvcache-ratio",  # refused by 0.5.9 already
        "--mm-max-concurrent-calls",
        "--mm-per-request-timeout",
    }
