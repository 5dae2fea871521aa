"""A package with the parts of FlashInfer that a build goes through, for what the real one does not do on demand.

Its modules are C++ and are built by the real ninja and the real compiler; one does not compile, one does not load, one
generator fails. For everything else the tests use FlashInfer itself.
"""

from __future__ import annotations

from pathlib import Path

FILES = {
    "flashinfer/__init__.py": "",
    "flashinfer/version.py": '__version__ = "0.7.2"\n',
    "flashinfer/compilation_context.py": """
class CompilationContext:
    @staticmethod
    def _normalize_cuda_arch(major, minor):
        return major, f"{minor}f"
""",
    "flashinfer/jit/__init__.py": "",
    "flashinfer/jit/env.py": """
import os, pathlib
_ARCH = "_".join(one.replace(".", "") for one in os.environ["FLASHINFER_CUDA_ARCH_LIST"].split(" "))
_BASE = os.environ["FLASHINFER_WORKSPACE_BASE"]
FLASHINFER_JIT_DIR = pathlib.Path(_BASE, ".cache/flashinfer/0.7.2", _ARCH, "cached_ops")
""",
    "flashinfer/jit/core.py": """
from . import env

class Registry(dict):
    def get_all_specs(self):
        return dict(self)

jit_spec_registry = Registry()

class Spec:
    def __init__(self, name, text):
        self.name, self.sources = name, [env.FLASHINFER_JIT_DIR.parent / f"{name}.cpp"]
        self.build_dir = env.FLASHINFER_JIT_DIR / name
        self.ninja_path = self.build_dir / "build.ninja"
        self.jit_library_path = self.build_dir / f"{name}.so"
        self.text = text
        jit_spec_registry[name] = self

    def write_ninja(self):
        self.build_dir.mkdir(parents=True, exist_ok=True)
        if not self.sources[0].exists():
            self.sources[0].write_text(self.text)
        self.ninja_path.write_text(
            "rule link\\n  command = c++ -shared -fPIC $in -lcuda -o $out\\n"
            f"build {self.jit_library_path}: link {self.sources[0]}\\n"
        )

    def build(self, verbose, need_lock):
        run_ninja(self.build_dir, self.ninja_path, verbose)

def run_ninja(workdir, ninja_file, verbose, max_jobs=None):
    raise NotImplementedError("as FlashInfer's own, it would not say in its error what it has shown")
""",
    "flashinfer/aot.py": """
from .jit.core import Spec

def gen_norm_module():
    return Spec("norm", "int norm() { return 1; }")

def gen_attention_module(head):
    return Spec(f"attention_{head}_stride_equal", "int attention() { return 1; }")

def gen_wrong_module():
    return Spec("wrong", "this is no C++")

def gen_unloadable_module():
    return Spec("unloadable", "int nowhere(); int here() { return nowhere(); }")

def gen_broken_module():
    raise FileNotFoundError("bin/print_traits.exe")

def register_default_modules():
    gen_norm_module()
    gen_broken_module()
    gen_attention_module(64)
""",
    "tvm_ffi.py": "import ctypes\n\ndef load_module(path):\n    return ctypes.CDLL(path)\n",
}


def install(site: Path) -> None:
    """Write the package into a site-packages folder."""
    for name, text in FILES.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
