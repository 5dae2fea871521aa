"""Known failures: what the outputs of tools mean, and what they do not mean."""

from __future__ import annotations

import importlib
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from crossgrade.failures.explaining import explain
from crossgrade.failures.fields import context_of, derive
from crossgrade.failures.occurrences import FIRST_PLACES, LARGE, LAST_PLACES, SHORTEST, occurrences
from crossgrade.failures.reading import output_of, read_output
from crossgrade.failures.secrets import without_secrets
from crossgrade.failures.signatures import Signature, signatures

DATA = Path(__file__).parents[1] / "data"
CASES: list[dict[str, Any]] = yaml.safe_load((DATA / "failures.yml").read_text(encoding="utf-8"))
VARIANTS: list[dict[str, Any]] = yaml.safe_load((DATA / "failure_variants.yml").read_text(encoding="utf-8"))
HEALTHY = (DATA / "healthy.txt").read_text(encoding="utf-8").removeprefix("=== ").split("\n=== ")


@pytest.mark.parametrize("case", CASES, ids=[case["kind"] for case in CASES])
def test_the_cases_that_people_meet(case: dict[str, Any]) -> None:
    first = explain(case["output"], case.get("context"))[0]
    assert first.kind == case["kind"]
    assert [words for words in case["remedy_mentions"] if words not in first.remedy] == []


@pytest.mark.parametrize("signature", signatures(), ids=[f"{n}-{s.kind}" for n, s in enumerate(signatures())])
def test_each_row_explains_its_example_and_names_its_source(signature: Signature) -> None:
    found = explain(signature.example, signature.example_context)
    assert [each.kind for each in found[:1]] == [signature.kind]
    assert found[0].source == signature.source
    assert len(signature.source) > 8
    assert all(link.startswith("https://") for link in signature.links)
    assert signature.links


@pytest.mark.parametrize("signature", signatures(), ids=[f"{n}-{s.kind}" for n, s in enumerate(signatures())])
def test_templates_are_well_formed_and_ask_only_for_what_every_pattern_gives(signature: Signature) -> None:
    """A field that some pattern may not give stands in brackets, with something to say without it."""
    for template in (signature.cause, signature.remedy):
        plain = re.sub(r"\[[^\[\]]*\]", "", template)
        assert not set("[]") & set(plain), "brackets are not nested"
        for pattern in signature.compiled:
            value = "70" if signature.when == "architecture_was_dropped" else "120"  # what every derivation takes
            groups = dict.fromkeys(pattern.groupindex, value)
            optional = {name for name in groups if may_be_missing(pattern, name)}
            given = derive({name: value for name, value in groups.items() if name not in optional}, {})
            assert set(re.findall(r"\{(\w+)\}", plain)) <= set(given), pattern.pattern


def may_be_missing(pattern: re.Pattern[str], name: str) -> bool:
    """Whether a named group stands inside something optional, or in one of several alternatives."""
    parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    return pattern.groupindex[name] not in always(parser.parse(pattern.pattern))


def always(tree: Any) -> set[int]:
    """The groups that take part in every match of a parsed expression."""
    found: set[int] = set()
    for operator, argument in tree:
        if str(operator) == "SUBPATTERN":
            found |= always(argument[-1]) | ({argument[0]} if argument[0] else set())
        elif str(operator) == "BRANCH":
            found |= set.intersection(*(always(branch) for branch in argument[1]))
        elif str(operator) in ("MAX_REPEAT", "MIN_REPEAT") and argument[0] > 0:
            found |= always(argument[2])
    return found


# ---- other words of the same kinds, and words that mean nothing


@pytest.mark.parametrize("case", VARIANTS, ids=[f"{n}-{case['kind']}" for n, case in enumerate(VARIANTS)])
def test_other_wordings_and_versions_of_the_same_kinds(case: dict[str, Any]) -> None:
    found = explain(case["output"], case.get("context"))
    assert [each.kind for each in found[:1]] == [case["kind"]]
    assert [words for words in case["remedy_mentions"] if words not in found[0].remedy] == []


@pytest.mark.parametrize("part", HEALTHY, ids=[part.partition("\n")[0] for part in HEALTHY])
def test_a_healthy_log_is_no_failure(part: str) -> None:
    assert explain(part) == ()


@pytest.mark.parametrize(
    ("output", "context"),
    [
        ("KeyError: 12", {}),
        ("KeyError: 'tokenizer'", {"gpu": "12.0"}),
        ("RuntimeError: shape mismatch: value tensor of shape [3] cannot be broadcast", {}),
        ("ValueError: not enough values to unpack (expected 2, got 1)", {"gpu": "12.0", "torch_cuda": "13.0"}),
        ("", {}),
        ("\0\xff", {}),
    ],
)
def test_what_is_not_known_is_not_guessed(output: str, context: dict[str, str]) -> None:
    assert explain(output, context) == ()


# ---- several failures in one output


TRACEBACKS = """\
[2026-11-30 10:00:00] server_args=ServerArgs(model_path='/models/x')
/v/torch/cuda/__init__.py:61: FutureWarning: The pynvml package is deprecated.
[2026-11-30 10:00:01 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "/v/sglang/srt/managers/scheduler.py", line 2602, in run_scheduler_process
torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, \
OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600071 milliseconds before timing out.
[2026-11-30 10:10:02] ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): \
address already in use
"""


def test_the_root_stands_before_its_symptoms_and_an_earlier_one_before_a_later() -> None:
    found = explain(TRACEBACKS, {"gpu": "12.0"})
    assert [each.kind for each in found] == ["no_code_for_this_gpu", "port_in_use", "nccl_timeout"]
    assert [each.evidence[0].line for each in found] == [5, 10, 9]
    assert found[0].evidence[0].text == TRACEBACKS.splitlines()[4]


def test_lines_about_one_failure_are_told_once_and_two_libraries_are_two_failures() -> None:
    line = "ImportError: {}: cannot open shared object file: No such file or directory\n"
    found = explain((line.format("libnvrtc.so.12") * 5) + line.format("libcublas.so.12"))
    assert [(each.kind, each.count, len(each.evidence)) for each in found] == [
        ("missing_library", 5, 3),
        ("missing_library", 1, 1),
    ]
    assert "libcublas.so.12" in found[1].cause


def test_a_warning_that_was_survived_stands_behind_the_error() -> None:
    warned = "WARNING: Ignore import error when loading x: libfoo.so.1: cannot open shared object file: No such file\n"
    assert [each.kind for each in explain(warned + "Torch not compiled with CUDA enabled")] == [
        "torch_without_cuda",
        "missing_library",
    ]


def test_progress_bars_colours_and_curly_quotes_do_not_hide_a_failure() -> None:
    said = "10%\r20%\r\x1b[31mnvcc fatal   : Unsupported gpu architecture \u2018compute_120\u2019\x1b[0m\r\n"
    found = explain(said)
    assert [each.kind for each in found] == ["nvcc_too_old"]
    assert found[0].evidence[0].line == 1
    assert "\x1b" not in found[0].evidence[0].text


def test_an_output_that_is_one_long_line_of_json_is_read_too() -> None:
    said = '{"log": "' + "x" * 5000 + '", "stderr": "Torch not compiled with CUDA enabled", "more": "' + "y" * 5000
    found = explain(said)
    assert [each.kind for each in found] == ["torch_without_cuda"]
    assert "Torch not compiled with CUDA enabled" in found[0].evidence[0].text
    assert len(found[0].evidence[0].text) < 500


# ---- secrets


@pytest.mark.parametrize(
    ("said", "secret"),
    [
        ("error sending request for url (https://me:s3cr3t-word@pypi.example.org/simple/torch/)", "s3cr3t-word"),
        ("Authorization: Bearer abcdefghijkl: Name or service not known", "abcdefghijkl"),
        ("hf_abcdefghijklmnop 401 Client Error for url: https://huggingface.co/x/y", "hf_abcdefghijklmnop"),
        ("unrecognized arguments: --api-key topsecretvalue", "topsecretvalue"),
        ("unrecognized arguments: API_TOKEN=topsecretvalue", "topsecretvalue"),
        ("fatal: unable to access 'https://oauth2:glpat-aaaabbbbcccc@git.example.org/x/': 403", "glpat-aaaabbbbcccc"),
        ("unrecognized arguments: " + "a" * 150 + " --api-key topsecretvalue", "topsecretvalue"),
    ],
)
def test_no_secret_is_repeated(said: str, secret: str) -> None:
    found = explain(said)
    assert found, "a failure that is known"
    assert secret not in str([each.to_json() for each in found])
    assert secret not in str(output_of(said).tail())
    assert "********" in str([each.to_json() for each in found])


def test_numbers_of_tokens_are_no_secrets() -> None:
    assert without_secrets("max_total_num_tokens=441832, api_key=None") == "max_total_num_tokens=441832, api_key=None"


# ---- the words of the context


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"gpu": "sm_120a"}, {"gpu": "12.0"}),
        ({"gpu": "NVIDIA RTX PRO 6000 (compute capability 12.0)"}, {"gpu": "12.0"}),
        ({"gpu": "103"}, {"gpu": "10.3"}),
        ({"gpu": "GB10"}, {"gpu": "GB10"}),
        ({"torch": "2.9.1+cu128"}, {"torch": "2.9.1+cu128", "torch_cuda": "12.8"}),
        ({"torch_cuda": "cu130"}, {"torch_cuda": "13.0"}),
        ({"torch": "2.9.1+cu128", "torch_cuda": "12.9"}, {"torch": "2.9.1+cu128", "torch_cuda": "12.9"}),
        ({"a b": "x", "driver": "  "}, {}),
    ],
)
def test_the_context_in_the_form_that_templates_use(given: dict[str, str], expected: dict[str, str]) -> None:
    assert context_of(given) == expected


# ---- large and hostile outputs


def test_one_pass_finds_what_single_searches_find() -> None:
    words = sorted({word for signature in signatures() for word in signature.find})
    assert min(map(len, words)) >= SHORTEST
    assert all(word == word.lower() for word in words)
    picker = random.Random(7)  # noqa: S311 - no cryptography here
    text = "\n".join(" ".join(picker.choices(words, k=3)) + "x" * picker.randrange(40) for _ in range(13_000)).encode()
    assert len(text) > LARGE
    assert occurrences(text, words) == {word: by_regular_expression(text, word) for word in words}


def by_regular_expression(text: bytes, word: str) -> list[int]:
    """The first and last places of a word, found in another way."""
    found = [match.start() for match in re.finditer(b"(?=" + re.escape(word.encode()) + b")", text)]
    return found[:FIRST_PLACES] + found[FIRST_PLACES:][-LAST_PLACES:]


def test_small_texts_are_searched_in_the_same_way() -> None:
    text = b"killed\n" * 1000 + b"kkilledd aaaa aaaaa"
    for word in ("killed", "aaaa", "absent"):
        assert occurrences(text, [word])[word] == by_regular_expression(text, word)


def test_a_failure_in_the_middle_of_a_large_log_is_found_with_its_line() -> None:
    line = "[12:00:01 TP0] Decode batch. #running-req: 1, #token: 1204, token usage: 0.00, cuda graph: True\n"
    said = line * 100_000 + "RuntimeError: CUDA error: out of memory\n" + line * 100_000
    assert len(said) > 8 * LARGE
    found = explain(said)
    assert [(each.kind, each.evidence[0].line) for each in found] == [("gpu_out_of_memory", 100_001)]


def test_of_a_huge_output_the_ends_are_read_and_the_gap_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("crossgrade.failures.reading.LARGEST", 10_000)
    said = (
        "Torch not compiled with CUDA enabled\n"
        + "fine\n" * 10_000
        + "c++: fatal error: Killed signal terminated program cc1plus\n"
    )
    (tmp_path / "log").write_text(said)
    for output in (output_of(said), read_output(tmp_path / "log")):
        found = explain(output)
        assert [(each.kind, each.evidence[0].line) for each in found] == [
            ("torch_without_cuda", 1),
            ("host_out_of_memory", None),
        ]
        assert output.skipped == len(said) - 10_000


HOSTILE = """
import random, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
from crossgrade.failures.explaining import explain
from crossgrade.failures.signatures import signatures
picker = random.Random(int(sys.argv[1]))
words = [word for signature in signatures() for word in signature.find]
pieces = ["/a", "a.", "1.", "lib.so.", " ", "'", "(", "error: ", "KeyError: ", "_Z3c10", "version 1 requires x ", "\\t",
          "/dev/shm ", "a-", "[", "\\x1b[31m", "{who}", "\\u2018", "/site-packages/", "https://", "--token ", "hf_"]
shapes = [example for signature in signatures() for example in (signature.example,)]
for _ in range(3):
    lines = []
    for _ in range(3000):
        piece, word = picker.choice(pieces), picker.choice(words)
        half = piece * (700 // len(piece))
        lines.append(picker.choice([half + word + half, word * 100, picker.choice(shapes) + half, half[:50] + word]))
    for found in explain("\\n".join(lines), {"gpu": "12.0"}):
        assert found.cause, found.remedy
explain((picker.choice(words) + " ") * 1_000_000)
explain("x" * 20_000_000)
explain("\\n" * 5_000_000 + picker.choice(words))
print("done")
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_no_line_takes_a_pattern_long(seed: int) -> None:
    """The kernel ends the process when it has used its processor time: some ten times what it takes here."""
    argv = [sys.executable, "-c", HOSTILE, str(seed)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=500)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@given(st.text(max_size=400), st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=3))
def test_any_text_and_any_context(text: str, context: dict[str, str]) -> None:
    for signature in signatures()[:: max(1, len(text) or 1)]:
        for found in explain(f"{text}{signature.example}{text}", context):
            assert found.kind
            assert isinstance(found.to_json(), dict)
