"""Known failures as real tools print them, by the command, and beside the tasks of real runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import Answer, crossgrade
from tests.support.native import build, dlopen, have_gcc
from tests.support.toolkits import toolkits, uv_program

from crossgrade.failures.explaining import Explanation, explain

needs_gcc = pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")
SECRET = "hunter2-is-no-password"  # noqa: S105 - made up for these tests


def said_by(argv: Sequence[object], **variables: str) -> str:
    """What a program that fails prints."""
    environment = {**os.environ, "LC_ALL": "C", **variables}
    done = subprocess.run(
        [str(word) for word in argv], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr


def first(output: str, **context: str) -> Explanation:
    found = explain(output, context)
    assert found, output
    return found[0]


# ---- real tools


def test_nvcc_from_pypi_with_architectures_that_are_not_there(tmp_path: Path) -> None:
    nvcc = toolkits().cuda_13_0 / "bin" / "nvcc"
    (tmp_path / "x.cu").write_text("__global__ void kernel() {}\n")
    compile_it = [nvcc, "-c", tmp_path / "x.cu", "-o", tmp_path / "x.o"]
    assert first(said_by([*compile_it, "-arch=sm_70"])).kind == "architecture_dropped"
    unknown = first(said_by([*compile_it, "-gencode", "arch=compute_199,code=sm_199"]))
    assert unknown.kind == "nvcc_too_old"
    assert "compute_199" in unknown.cause
    missing = first(said_by([*compile_it, "-ccbin", tmp_path / "no-such-g++"]))
    assert missing.kind == "host_compiler_missing"


def test_ptxas_of_cuda_12_8_does_not_know_sm_121(tmp_path: Path) -> None:
    ptxas = toolkits().cuda_12_8 / "bin" / "ptxas"
    (tmp_path / "x.ptx").write_text(".version 8.7\n.target sm_90\n.address_size 64\n")
    found = first(said_by([ptxas, "--gpu-name", "sm_121a", tmp_path / "x.ptx", "-o", tmp_path / "x.cubin"]))
    assert found.kind == "ptxas_too_old"
    assert "CUDA 12.9" in found.remedy
    (tmp_path / "x.ptx").write_text(".version 9.9\n.target sm_90\n.address_size 64\n")
    newer = first(said_by([ptxas, "--gpu-name", "sm_90", tmp_path / "x.ptx", "-o", tmp_path / "x.cubin"]))
    assert newer.kind == "ptxas_too_old"
    assert "PTX 9.9" in newer.cause


@needs_gcc
def test_what_the_loader_says_of_missing_libraries_and_symbols(tmp_path: Path) -> None:
    runtime = build(
        tmp_path / "stub" / "libcufft.so.12",
        "int cufftPlan(void) { return 1; }",
        options=["-Wl,-soname,libcufft.so.12"],
    )
    code = "int cufftPlan(void); int call(void) { return cufftPlan(); }"
    user = build(tmp_path / "user.so", code, libraries=[runtime])
    runtime.unlink()
    missing = first(dlopen(user).message, torch_cuda="12.8")
    assert missing.kind == "missing_library"
    assert "CUDA 13" in missing.cause
    assert "12.8" in missing.cause
    symbol = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib"
    torn = build(tmp_path / "torn.so", f"int {symbol}(void); int call(void) {{ return {symbol}(); }}")
    found = first(dlopen(torn).message)
    assert found.kind == "compiled_for_another_torch"
    assert "c10::cuda::c10_cuda_check_implementation(int, char const*" in found.cause
    (tmp_path / "short.so").write_bytes(user.read_bytes()[:40])
    assert first(dlopen(tmp_path / "short.so").message).kind == "truncated_library"


@needs_gcc
def test_what_compiler_and_linker_say(tmp_path: Path) -> None:
    source = tmp_path / "x.cpp"
    for text, kind in (
        ("#include <cuda/std/utility>\n", "cccl_headers_moved"),
        ("#include <cuda_runtime_api.h>\n", "toolkit_headers_missing"),
        ("#include <Python.h>\n", "python_headers_missing"),
    ):
        source.write_text(text)
        assert first(said_by(["g++", "-nostdinc++", "-c", source, "-o", tmp_path / "x.o"])).kind == kind
    source.write_text("int main() {}\n")
    assert first(said_by(["g++", source, "-lnvrtc-none", "-o", tmp_path / "x"])).kind == "toolkit_without_link_names"


def test_uv_with_requirements_that_cannot_be_met(tmp_path: Path) -> None:
    (tmp_path / "requirements.in").write_text("six==1.16.0\nsix==1.17.0\n")
    compile_it = [uv_program(), "pip", "compile", "--quiet", tmp_path / "requirements.in"]
    assert first(said_by(compile_it)).kind == "requirements_conflict"
    (tmp_path / "requirements.in").write_text("six==99\n")
    found = first(said_by(compile_it))
    assert found.kind == "no_matching_distribution"
    assert "six==99" in found.cause


def test_uv_where_nobody_listens(tmp_path: Path) -> None:
    (tmp_path / "requirements.in").write_text("six\n")
    argv = [uv_program(), "pip", "compile", "--no-cache", "--quiet", tmp_path / "requirements.in"]
    said = said_by(argv, UV_DEFAULT_INDEX="http://127.0.0.1:9/simple", UV_HTTP_RETRIES="0", HTTP_PROXY="", ALL_PROXY="")
    assert first(said).kind == "network_unreachable"


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = said_by([sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)])
    assert first(said).kind == "port_in_use"


# ---- the command


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (["Torch not compiled with CUDA enabled"], 0, "torch_without_cuda"),
        (["Torch", "not", "compiled", "with", "CUDA", "enabled"], 0, "torch_without_cuda"),
        (["-- unsupported GNU version! gcc versions later than 13 are not supported!"], 0, "host_compiler_too_new"),
        (["KeyError: 12", "--context", "traceback_mentions=symmetric_memory"], 0, "architecture_table_lacks_gpu"),
        (["--text", "Torch not compiled with CUDA enabled"], 0, "torch_without_cuda"),
        (["nothing of the kind"], 2, None),
    ],
)
def test_the_command_on_text(words: list[str], code: int, kind: str | None) -> None:
    answer = crossgrade("explain", *words, "--json")
    assert answer.code == code, answer.stderr
    document = json.loads(answer.stdout)
    assert (document["kind"], document["explained"]) == (kind, code == 0)
    assert document["tail"]


def test_the_command_on_a_file_and_on_its_input(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_text("fine\nnvcc fatal   : Unsupported gpu architecture 'compute_120'\n")
    told = crossgrade("explain", log)
    assert told.code == 0
    for words in ("known failure: nvcc_too_old: ", "evidence: line 2: nvcc fatal", "remedy: ", "see: https://"):
        assert words in told.stdout
    with log.open("rb") as lines:
        argv = [str(Path(sys.executable).with_name("crossgrade")), "explain", "-", "--json"]
        done = subprocess.run(argv, stdin=lines, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, json.loads(done.stdout)["kind"]) == (0, "nvcc_too_old")
    log.write_text("one\n\ntwo\n")
    unknown = crossgrade("explain", log)
    assert unknown.code == 2
    assert "nothing known is in it" in unknown.stdout
    assert "  one\n  two\n" in unknown.stdout


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "binary.log").write_bytes(b"\x7fELF\0\0\0")
    for path, why in (
        (tmp_path, "directory"),
        (tmp_path / "none.log", "No such file"),
        (tmp_path / "binary.log", "no text"),
    ):
        answer = crossgrade("explain", path)
        assert answer.code == 1
        assert f"{path} cannot be read: " in answer.stderr
        assert why in answer.stderr
    assert crossgrade("explain", "x", "--context", "gpu").code == 5


# ---- beside failed tasks


def run(folder: Path, text: str, *options: str) -> Answer:
    play = folder / "play.yml"
    play.write_text(text)
    return crossgrade("upgrade", "--playbook", play, "--root", folder / "root", "--yes", *options)


FAILING = """
- hosts: localhost
  tasks:
    - name: compile
      command: {argv: [sh, -c, "echo \\"nvcc fatal   : Unsupported gpu architecture 'compute_120'\\" >&2; \
for i in $(seq 60); do echo more; done; exit 1"]}
"""


def test_a_failed_task_tells_cause_evidence_remedy_and_link(tmp_path: Path) -> None:
    answer = run(tmp_path, FAILING)
    assert answer.code == 2
    out = answer.stdout
    assert "fatal: [localhost]: FAILED! => sh -c" in out
    for words in ("known failure: nvcc_too_old: ", "evidence: nvcc fatal   : Unsupported", "remedy: ", "see: https://"):
        assert f"    {words}" in out or f"      {words}" in out
    assert "evidence: known failure: nvcc_too_old: " in out.partition("FAILED and rolled back")[2]
    report = json.loads(next((tmp_path / "root").rglob("report.json")).read_text())
    (explanation,) = report["tasks"][-1]["explanations"]
    assert explanation["kind"] == "nvcc_too_old"
    assert explanation["evidence"] == [
        {"line": None, "text": "nvcc fatal   : Unsupported gpu architecture 'compute_120'"}
    ]


def test_output_that_only_a_condition_condemns_and_ignored_failures_are_explained(tmp_path: Path) -> None:
    answer = run(
        tmp_path,
        """
- hosts: localhost
  tasks:
    - name: judged
      command: echo Torch not compiled with CUDA enabled
      register: said
      failed_when: "'not compiled' in said.stdout"
      ignore_errors: true
    - name: looped
      command: "sh -c 'echo {{ item }}; exit 1'"
      loop: [fine, address already in use]
      ignore_errors: true
    - name: unknown
      command: "false"
      ignore_errors: true
""",
        "--json",
    )
    assert answer.code == 0, answer.stderr
    told: list[tuple[str, list[str]]] = [
        (result["name"], [each["kind"] for each in result["explanations"]]) for result in answer.of_kind("task_result")
    ]
    assert told == [("judged", ["torch_without_cuda"]), ("looped", []), ("looped", ["port_in_use"]), ("unknown", [])]


def test_no_log_and_secrets_keep_their_words(tmp_path: Path) -> None:
    text = f"""
- hosts: localhost
  tasks:
    - command: {{argv: [sh, -c, "echo 'error sending request for url (https://me:{SECRET}@example.org/)'; exit 1"]}}
      no_log: true
"""
    answer = run(tmp_path, text, "--json")
    assert answer.code == 2
    assert answer.of_kind("task_result")[-1]["explanations"] == []
    assert SECRET not in answer.stdout + answer.stderr
    for path in (tmp_path / "root").rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    shown = run(tmp_path, text.replace("no_log: true", "no_log: false"), "--json")
    explanation: dict[str, Any] = shown.of_kind("task_result")[-1]["explanations"][0]
    assert explanation["kind"] == "network_unreachable"
    assert SECRET not in json.dumps(explanation)


def test_a_server_that_does_not_start_is_explained_from_its_whole_log(tmp_path: Path) -> None:
    program = "import sys; print('libnvrtc.so.12: cannot open shared object file'); print('x\\\\n' * 500); sys.exit(3)"
    text = f"""
- hosts: localhost
  tasks:
    - server:
        path: {sys.prefix}
        command: ["{{python}}", "-c", "{program}", "{{port}}"]
"""
    answer = run(tmp_path, text, "--json")
    assert answer.code == 2, answer.stderr
    result = answer.of_kind("task_result")[-1]
    assert [each["kind"] for each in result["explanations"]] == ["missing_library"]
    assert "libnvrtc.so.12" not in result["message"]


def test_a_plan_that_fails_says_why(tmp_path: Path) -> None:
    play = tmp_path / "play.yml"
    play.write_text(
        "- hosts: localhost\n  tasks:\n    - fail: {msg: 'E: Unable to locate package cuda-toolkit-13-0'}\n"
    )
    answer = crossgrade("plan", "--playbook", play, "--root", tmp_path / "root")
    assert answer.code == 1
    assert "known failure: apt_package_unknown: " in answer.stdout + answer.stderr
