"""The hooks by which hatchling builds this dist: its version and dependencies, and its native extension.

Environment variables (crossgrade's extension_build module sets them):
CUDA_HOME, CROSSGRADE_CUDA_ARCHITECTURES ("12.0" or "9.0;12.0+PTX"), MAX_JOBS, CXX (default g++) and
REHEARSAL_FAULT (``broken_import`` makes a wheel that cannot be imported; the others change nothing here).
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).resolve().parent

# The source tree must stay as it is, bytecode included: crossgrade hashes it. Python has already cached this
# file when this line runs, so that one is removed again.
sys.dont_write_bytecode = True
_own_bytecode = Path(importlib.util.cache_from_source(__file__))
_own_bytecode.unlink(missing_ok=True)
if _own_bytecode.parent.is_dir() and not any(_own_bytecode.parent.iterdir()):
    _own_bytecode.parent.rmdir()
sys.path.insert(0, str(ROOT))

from buildtools.commands import say  # noqa: E402 - the lines above must come first
from buildtools.extension import FILE_NAME, build_extension  # noqa: E402 - as above
from buildtools.toolkit import (  # noqa: E402 - as above
    ARCHITECTURES_VARIABLE,
    BuildError,
    Toolkit,
    parse_architectures,
    read_jobs,
    read_toolkit,
)

BASE_VERSION = "1.0.0"
# The values of the playbook's rehearsal_fault. Only broken_import concerns the build.
FAULTS = ("", "none", "old_extension", "wrong_arch", "slow", "broken_import")

Result = TypeVar("Result")


def _or_exit(work: Callable[[], Result]) -> Result:
    """The result of ``work``; a BuildError ends the build with its message and remedy, no traceback."""
    try:
        return work()
    except BuildError as error:
        say("")
        sys.stdout.flush()
        sys.stderr.write(f"rehearsal-engine: {error.message}\nWhat to do: {error.remedy}\n")
        sys.stderr.flush()
        sys.exit(1)


def _version(toolkit: Toolkit) -> str:
    return f"{BASE_VERSION}+{toolkit.local_version}"


class MetadataHook(MetadataHookInterface):
    """Version and dependencies, which follow from the toolkit."""

    def update(self, metadata: dict[str, Any]) -> None:
        toolkit = _or_exit(lambda: read_toolkit(os.environ))
        metadata["version"] = _version(toolkit)
        metadata["dependencies"] = ["numpy>=2.2", toolkit.runtime_requirement]


class BuildHook(BuildHookInterface):  # type: ignore[type-arg]  # its parameter is the builder's configuration, unused
    """Compiles the extension in a temporary directory and adds it to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        if version == "editable":
            _or_exit(self._refuse_editable)
        self.scratch = tempfile.TemporaryDirectory(prefix="rehearsal-engine-")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp310-abi3-{self._platform()}"
        build_data["force_include"].update(_or_exit(self._build))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - hatchling's signature
        scratch = getattr(self, "scratch", None)
        if scratch is not None:
            scratch.cleanup()

    @staticmethod
    def _platform() -> str:
        import sysconfig

        return sysconfig.get_platform().replace("-", "_").replace(".", "_")

    @staticmethod
    def _refuse_editable() -> None:
        raise BuildError("an editable install is not supported", "build a wheel: uv build --wheel")

    def _build(self) -> dict[str, str]:
        """Make all generated files; their paths -> their places in the wheel."""
        scratch = Path(self.scratch.name).resolve()
        fault = os.environ.get("REHEARSAL_FAULT", "")
        if fault not in FAULTS:
            raise BuildError(f"REHEARSAL_FAULT is {fault!r}", f"use one of: {', '.join(FAULTS[1:])}")
        toolkit = read_toolkit(os.environ)
        architectures = parse_architectures(os.environ.get(ARCHITECTURES_VARIABLE, ""))
        route = "nvcc" if toolkit.nvcc else "NVRTC and ptxas (CUDA_HOME has no nvcc)"
        say(
            f"rehearsal-engine {_version(toolkit)}: CUDA {toolkit.release} in {toolkit.home}, "
            f"compiled by {route} for "
            + ", ".join(a.sass_name + (f" and {a.ptx_name}" if a.ptx else "") for a in architectures)
        )
        work = scratch / "work"
        work.mkdir()
        built = build_extension(toolkit, architectures, read_jobs(os.environ), ROOT / "native", work, dict(os.environ))
        files = {str(built.path): f"rehearsal_engine/{FILE_NAME}"}

        # Nothing here may differ between two builds of the same inputs: no time, no path, no host name.
        information = {
            "version": _version(toolkit),
            "cuda": toolkit.release,
            "device_compiler": built.device_compiler,
            "host_compiler": built.host_compiler,
            "architectures": os.environ[ARCHITECTURES_VARIABLE],
            "sass": [architecture.sass_name for architecture in architectures],
            "ptx": [architecture.ptx_name for architecture in architectures if architecture.ptx],
            "needs": toolkit.runtime_soname,
        }
        information_file = scratch / "build_info.json"
        information_file.write_text(json.dumps(information, indent=2) + "\n", encoding="utf-8")
        files[str(information_file)] = "rehearsal_engine/build_info.json"

        if fault == "broken_import":
            # The mistake of a package whose Python half is newer than its native half.
            say("REHEARSAL_FAULT=broken_import: __init__.py will ask _kernels for a name that it lacks")
            text = (ROOT / "rehearsal_engine" / "__init__.py").read_text(encoding="utf-8")
            broken = scratch / "__init__.py"
            broken.write_text(
                text + "\nfrom rehearsal_engine._kernels import fused_step  # noqa: F401\n", encoding="utf-8"
            )
            files[str(broken)] = "rehearsal_engine/__init__.py"
        say(f"built {FILE_NAME}: {built.path.stat().st_size} bytes, needs {toolkit.runtime_soname}")
        return files
