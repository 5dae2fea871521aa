"""Where a real process that runs from a generation puts its JIT caches: into the generation, and nothing into HOME.

The packages are those of the real environments in ~/.cache/crossgrade/oracle, which are only read. What needs a GPU to
write is asked for its folder instead.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from crossgrade.knowledge import table
from crossgrade.store.generation import Generation
from crossgrade.store.layout import Store, generation_environment

ORACLE = Path("~/.cache/crossgrade/oracle").expanduser()

ASK = """
import importlib, json, sys
answers = {}
for line in json.load(sys.stdin):
    name, module, expression = line
    answers[name] = str(eval(expression, {"module": importlib.import_module(module)}))
print("answers:" + json.dumps(answers))
"""

# what is asked: the folder below caches/ that the answer lies in, the module, the expression
WRITES = [
    ("triton", "triton.runtime.cache", "module.get_cache_manager('00ff').put(b'x', 'kernel.txt')"),
    ("torch_extensions", "torch.utils.cpp_extension", "module._get_build_directory('crossgrade', False)"),
    ("flashinfer", "flashinfer.jit.core", "module.get_tmpdir()"),
    (
        "tvm_ffi",
        "tvm_ffi.cpp",
        "module.build_inline('crossgrade', cpp_sources='int one() { return 1; }', functions=['one'])",
    ),
]
BOTH = [
    ("inductor", "torch._inductor.runtime.cache_dir_utils", "module.cache_dir()"),
    ("triton_home", "triton.knobs", "module.cache.dump_dir"),
    ("deep_gemm", "sglang.srt.environ", "module.envs.SGLANG_DG_CACHE_DIR.get()"),
]
ONLY_12_8 = [
    ("cudnn_gemm", "cudnn.gemm.frost.compiler", "module._cache_dir()"),
    ("cute_dsl", "cutlass.base_dsl.cache_helpers", "module.default_generated_ir_path"),
]
ONLY_13 = [
    ("sglang", "sglang.srt.environ", "module.envs.SGLANG_CACHE_DIR.get()"),
    ("tilelang", "tilelang.env", "module.env.TILELANG_CACHE_DIR"),
    ("quack", "quack.cache", "module.get_cache_path()"),
    ("humming", "humming.utils.jit", "module.get_humming_cache_dir()"),
    ("humming_tmp", "humming.utils.jit", "module.get_humming_tmp_dir()"),
    ("flash_attention", "flash_attn.cute.cache_utils", "module.get_cache_path()"),
    ("flex_attention", "cudnn.flex_attention.runtime.compile_cache", "module.get_cache_path()"),
    ("cudnn_cake", "cudnn.linear_attention.cake.compiler", "module.cache_dir()"),
    ("cudnn_plans", "cudnn.frost.compiled_cache", "module.get_cache_dir()"),
    ("cudnn_gemm", "cudnn.gemm.frost.sm120.compiler", "module._cache_dir()"),
    ("cutile", "cutile_cache._env", "module.get_cache_dir_from_env()"),
    ("cute_dsl", "cutlass.base_dsl.cache_helpers", "module.get_default_generated_ir_path()"),
    ("b12x", "flashinfer.experimental.b12x._lib.compiler", "module._cute_compile_cache_dir()"),
]
# SGLang 0.5.23 moves the caches of others below its own, unless they have a place already.
REDIRECT = "(module.redirect_third_party_caches(), __import__('os').environ[{variable!r}])[1]"
REDIRECTED = [
    (folder, "sglang.srt.environ", REDIRECT.format(variable=variable))
    for folder, variable in (
        ("cuda", "CUDA_CACHE_PATH"),
        ("triton", "TRITON_CACHE_DIR"),
        ("inductor", "TORCHINDUCTOR_CACHE_DIR"),
        ("tilelang", "TILELANG_CACHE_DIR"),
        ("flashinfer", "FLASHINFER_WORKSPACE_BASE"),
    )
]


def a_generation(root: Path) -> tuple[Path, dict[str, str]]:
    """The caches folder of a generation, and its environment."""
    store = Store(root)
    generation = Generation(1, "x", "built", "ready", "2026-12-01T00:00:00Z")
    return store.folder(1) / "caches", dict(generation_environment(store, generation))


def test_every_cache_lies_in_the_generation_and_no_variable_is_named_twice(tmp_path: Path) -> None:
    caches, environment = a_generation(tmp_path)
    variables = [str(row["variable"]) for row in table("caches")]
    assert len(set(variables)) == len(variables)
    for row in table("caches"):
        place = Path(environment[str(row["variable"])])
        assert place.relative_to(caches).parts[0] == row["folder"], row
        assert place.name == row.get("file", row["folder"])
    assert "HF_HOME" not in environment, "models are no kernels: every generation uses those that are there"
    assert "XDG_CACHE_HOME" not in environment, "it would move the models too"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "architecture", "questions"),
    [
        ("sglang-CUDA-12.8", "12.0a", [*WRITES, *BOTH, *ONLY_12_8]),
        ("sglang-CUDA-13", "12.0f", [*WRITES, *BOTH, *ONLY_13]),
        ("sglang-CUDA-13", "12.0f", REDIRECTED),
    ],
    ids=["sglang 0.5.9", "sglang 0.5.23", "sglang 0.5.23, redirecting"],
)
def test_real_packages_write_into_the_generation_and_not_into_home(
    tmp_path: Path, name: str, architecture: str, questions: list[tuple[str, str, str]]
) -> None:
    venv = ORACLE / name
    if not (venv / "bin" / "python").exists():
        pytest.skip(f"{venv} is not there: tests/oracle/test_real_stacks.py makes it")
    caches, environment = a_generation(tmp_path / "store")
    home = tmp_path / "home"
    home.mkdir()
    variables = {
        "PATH": f"{venv}/bin:{os.environ['PATH']}",
        "HOME": str(home),
        "TMPDIR": str(tmp_path / "temporary"),
        "FLASHINFER_CUDA_ARCH_LIST": architecture,
        "PYTHONDONTWRITEBYTECODE": "1",
        **environment,
    }
    (tmp_path / "temporary").mkdir()
    numbered = [(f"{number} {question[0]}", *question[1:]) for number, question in enumerate(questions)]
    said = subprocess.run(
        [venv / "bin" / "python", "-B", "-c", ASK],
        input=json.dumps(numbered), env=variables, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr[-2000:]
    answers = json.loads(said.stdout.rpartition("answers:")[2])
    for question, answer in answers.items():
        assert Path(answer).relative_to(caches).parts[0] == question.split()[1], question
    if questions is not REDIRECTED:
        for folder, *_ in WRITES:
            assert any((caches / folder).rglob("*")), f"{folder} was written to"
    assert [path for path in home.rglob("*") if path.is_file()] == []
