"""SGLang's own server without a GPU: what it needs beside the wheels, so that none of its files is changed.

- `SGLANG_USE_CPU_ENGINE=1` and `--device cpu --attention-backend torch_native --sampling-backend pytorch`: its own
  switches. PyTorch then computes, since the kernels for processors (`convert_weight_packed` and others) are in no wheel
  on PyPI. Without the variable it looks for vLLM's rotary embedding (`rotary_embedding.py`), which nobody has.
- A `libcuda.so.1` whose functions all answer 100, no device. The wheel's kernels are linked with the driver's library,
  and `import sgl_kernel` fails without one; nothing of them is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.oracle.test_serving_stacks import served
from tests.support.loader_oracle import stand_for_the_driver
from tests.support.tiny_model import write_tiny_model

from crossgrade.bench.server_process import ServerSpec, launch
from crossgrade.inspect.native import inspect_native
from crossgrade.store.generation import Generation
from crossgrade.store.layout import Store

OPTIONS = (
    *("--host", "{host}", "--port", "{port}", "--device", "cpu", "--attention-backend", "torch_native"),
    *("--sampling-backend", "pytorch", "--dtype", "float32", "--max-total-tokens", "16384"),
    *("--disable-cuda-graph", "--disable-overlap-schedule"),
)


@dataclass(frozen=True)
class Stack:
    """A real environment that is only read, and what its server needs. `name` is that of `test_serving_stacks`."""

    name: str
    venv: Path
    work: Path

    @property
    def model(self) -> Path:
        return self.work / "model"

    @property
    def command(self) -> tuple[str, ...]:
        """For the module `server`: `{python}`, `{host}` and `{port}` are filled in there."""
        return ("{python}", "-m", "sglang.launch_server", "--model-path", str(self.model), *OPTIONS)

    @property
    def environment(self) -> dict[str, str]:
        """Caches and bytecode lie in the test's folder: nothing is written into the environment."""
        caches = {name: str(self.work / folder) for name, folder in _CACHES.items()}
        return {
            **caches,
            "LD_LIBRARY_PATH": str(self.work / "driver"),
            "SGLANG_USE_CPU_ENGINE": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }

    def spec(self) -> ServerSpec:
        """For a start by hand, which may keep its bytecode, as the gates do not."""
        python = str(self.venv / "bin" / "python")
        (self.work / "home").mkdir(exist_ok=True)
        return ServerSpec(
            command=tuple(word.replace("{python}", python) for word in self.command),
            environment={"PATH": f"{self.venv / 'bin'}:/usr/bin:/bin", **self.environment},
            cwd=self.work,
            health_paths=("/health_generate",),
            start_timeout=600,
            stop_grace=30,
        )


_CACHES = {
    "HOME": "home",
    "PYTHONPYCACHEPREFIX": "bytecode",
    "XDG_CACHE_HOME": "home/cache",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}


def prepare(name: str, work: Path) -> Stack:
    """The environment from `test_serving_stacks`, a model and a driver's stand-in in the folder `work`."""
    work.mkdir(parents=True, exist_ok=True)
    stack = Stack(name, served(name), work)
    write_tiny_model(stack.model)
    stand_for_the_driver(inspect_native(stack.venv), work / "driver")
    return stack


def start_once(stack: Stack) -> float:
    """Start and stop it, so that bytecode and what it compiles are there; gives the seconds until it was healthy."""
    with launch(stack.spec(), stack.work / "first.log") as server:
        return server.start_seconds


def add_generation_of(store: Store, number: int, stack: Stack, extra: dict[str, str] | None = None) -> None:
    """A generation whose venv has a Python of its own and finds all of the stack's dists by one .pth file.

    Ten gigabytes are not copied for it. Whatever runs from it runs the stack's own files.
    """
    from tests.support.gate_host import make_venv

    store.write_generation(
        Generation(
            number=number,
            identity=f"identity-{number}",
            origin="built",
            state="ready",
            created="2026-12-01T00:00:00Z",
            environment={**stack.environment, **(extra or {})},
            manifest=f"manifest-{number}",
        )
    )
    site = make_venv(store.venv(number))
    whole = next(stack.venv.glob("lib/python3*/site-packages"))
    (site / "whole.pth").write_text(f"import site; site.addsitedir({str(whole)!r})\n")
