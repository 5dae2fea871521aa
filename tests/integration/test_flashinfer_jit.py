"""flashinfer_jit against the real FlashInfer: what it builds, where, and that the server's FlashInfer builds nothing.

The environment is one of those in ~/.cache/crossgrade/oracle, as `tests/oracle/test_real_stacks.py` makes them. It is
only read: a generation whose venv is a link to it has caches of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.support.module_host import ModuleHost, plan_module, run_module, undo_all
from tests.support.toolkits import uv_program

from crossgrade.errors import TaskError
from crossgrade.modules.contract import Change, Unchanged
from crossgrade.modules.cuda_home import unify
from crossgrade.modules.flashinfer_jit import MODULE
from crossgrade.modules.gate import Candidate, program_environment
from crossgrade.store.generation import Generation

ORACLE = Path("~/.cache/crossgrade/oracle").expanduser()
REQUIREMENT = "cuda-toolkit[nvcc,cudart,cccl,nvrtc,cublas,cusparse,cusolver,curand,cufft]==13.0.*"

# What FlashInfer does on the first use of a module, up to the compiler.
FIRST_USE = """
import subprocess
from flashinfer.jit.norm import gen_norm_module
spec = gen_norm_module()
spec.write_ninja()
asked = ["ninja", "-n", "-C", str(spec.build_dir), "-f", str(spec.ninja_path)]
print(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
"""


def environment_of(name: str) -> Path:
    place = ORACLE / name
    if not (place / "bin" / "python").exists():
        pytest.skip(f"{place} is not there: tests/oracle/test_real_stacks.py makes it")
    return place


@pytest.fixture(scope="module")
def cuda_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CUDA 13.0 from wheels, as cuda_toolkit lays it out."""
    place = tmp_path_factory.mktemp("toolkit")
    command = [uv_program(), "pip", "install", "--quiet", "--python", uv_program().replace("/uv", "/python")]
    environment = {**os.environ, "UV_CACHE_DIR": str(ORACLE / "downloads")}
    subprocess.run([*command, "--target", str(place / "site"), REQUIREMENT], env=environment, check=True)
    unify(place / "site", place / "cuda_home")
    return place / "cuda_home"


def candidate(host: ModuleHost, venv: Path, cuda_home: Path, **environment: str) -> Generation:
    """Generation 1 of the host's store, whose venv is a link to a real one."""
    dists = {"flashinfer-python": version_of(venv)}
    variables = {"CUDA_HOME": str(cuda_home), **environment}
    generation = Generation(1, "real", "built", "ready", "2026-12-01T00:00:00Z", "", variables, {"dists": dists}, "m")
    host.store.write_generation(generation)
    host.store.venv(1).symlink_to(venv)
    return generation


def version_of(venv: Path) -> str:
    (place,) = venv.glob("lib/python3*/site-packages/flashinfer_python-*.dist-info")
    return place.name.split("-")[1].removesuffix(".dist")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_module_is_built_for_the_server_that_will_look_for_it(tmp_path: Path, cuda_home: Path) -> None:
    venv = environment_of("sglang-CUDA-13")
    # CC of the shell is no variable of the generation: the server would not have it, so the build must not
    host = ModuleHost(tmp_path, environment={**os.environ, "HOME": str(tmp_path / "home"), "CC": "/nowhere/cc"})
    generation = candidate(host, venv, cuda_home)
    arguments = {"generation": 1, "modules": ["norm"], "architectures": ["12.0f"]}

    planned = plan_module(MODULE, arguments, host.planning())
    assert isinstance(planned, Change)
    assert planned.summary.startswith("build 1 module of FlashInfer 0.7.2 for 12.0f with ")
    assert [difference.subject for difference in planned.differences] == ["FlashInfer module norm"]
    cache = host.store.folder(1) / "caches/flashinfer/.cache/flashinfer/0.7.2/120f/cached_ops"
    assert not cache.exists(), "a plan changes nothing"

    outcome = run_module(MODULE, arguments, host)
    assert outcome.values == {"cache": str(cache), "modules": ["norm"], "unknown": []}
    assert "1 module, 3 commands run" in outcome.message
    record = json.loads((cache.parent / "crossgrade.json").read_text())
    assert record["modules"]["norm"]["device_code"] == ["sm_120f"]
    cuobjdump = Path(uv_program()).parent.parent  # the listing of NVIDIA's own program says the same, without the f
    (program,) = cuobjdump.glob("lib/python3*/site-packages/nvidia/cu13/bin/cuobjdump")
    listed = subprocess.run([program, "-lelf", cache / "norm/norm.so"], capture_output=True, text=True, check=True)
    assert {line.split(".")[-2] for line in listed.stdout.splitlines()} == {"sm_120"}
    assert not (tmp_path / "home").exists(), "nothing was written to HOME"

    environment = program_environment(Candidate(host.store.venv(1), generation), host)
    environment.pop("CC")
    first_use = {**environment, "FLASHINFER_CUDA_ARCH_LIST": "12.0f"}  # what it makes of the GPU, which is not here
    for python in (host.store.venv(1) / "bin/python", venv / "bin/python"):
        said = subprocess.run(
            [python, "-B", "-c", FIRST_USE], env=first_use, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert "ninja: no work to do." in said.stdout
    threads = {**first_use, "FLASHINFER_NVCC_THREADS": "2"}
    said = subprocess.run(
        [host.store.venv(1) / "bin/python", "-B", "-c", FIRST_USE],
        env=threads, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "[1/3]" in said.stdout, "another command is another module: so only the generation's variables count"

    assert isinstance(plan_module(MODULE, arguments, host), Unchanged)
    (cache.parent / "crossgrade.json").unlink()  # all that is known is lost: ninja still finds nothing to compile
    (cache / "norm/build.ninja").unlink()
    again = run_module(MODULE, arguments, host)
    assert "1 module, 0 commands run" in again.message

    assert undo_all(MODULE, host) == ["", ""], "a whole module stays"
    assert (cache / "norm/norm.so").is_file()

    old = tmp_path / "old/.cache/flashinfer/0.6.3/120a/cached_ops"
    for name in ("norm", "a_module_of_before"):
        (old / name).mkdir(parents=True)
        (old / name / f"{name}.so").touch()
    from_cache = {"generation": 1, "from_cache": str(tmp_path / "old/.cache/flashinfer"), "architectures": ["12.0f"]}
    taken = run_module(MODULE, from_cache, host)
    assert taken.values["modules"] == ["norm"]
    assert taken.values["unknown"] == ["a_module_of_before"]
    assert "left to the server: a_module_of_before" in taken.message
    assert isinstance(plan_module(MODULE, from_cache, host), Unchanged)

    assert "norm: [1/" in (host.log_directory / "flashinfer_jit.log").read_text()
    (tmp_path / "other").mkdir()
    other = ModuleHost(tmp_path / "other", environment=host.environment)
    candidate(other, venv, cuda_home, FLASHINFER_EXTRA_CUDAFLAGS="--no-such-option")
    with pytest.raises(TaskError, match=r"could not build norm:\n(.|\n)*Unknown option '--no-such-option'"):
        run_module(MODULE, arguments, other)
    with pytest.raises(TaskError, match=r"FlashInfer 0\.7\.2 has no module nrom"):
        run_module(MODULE, {**arguments, "modules": ["nrom"]}, host)
    with pytest.raises(
        TaskError, match=r"on such a GPU FlashInfer 0\.7\.2 looks for modules for 12\.0f, not for 12\.0a"
    ):
        run_module(MODULE, {**arguments, "architectures": ["12.0a"]}, host)
