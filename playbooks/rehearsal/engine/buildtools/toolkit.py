"""What is in CUDA_HOME, and what the build is asked to make: read from files and the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ARCHITECTURES_VARIABLE = "CROSSGRADE_CUDA_ARCHITECTURES"


class BuildError(Exception):
    """The build cannot go on; ``remedy`` says what to do about it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


@dataclass(frozen=True)
class Architecture:
    """One entry of the architecture list, with the meaning that TORCH_CUDA_ARCH_LIST gives it."""

    number: str  # "120", "90a": the digits and the variant letter as compilers write them
    ptx: bool

    @property
    def sass_name(self) -> str:
        return f"sm_{self.number}"

    @property
    def ptx_name(self) -> str:
        return f"compute_{self.number}"


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit with bin/, include/ and lib64/ (or lib/) below ``home``."""

    home: Path
    version: int  # CUDART_VERSION: 1000 * major + 10 * minor

    @property
    def major(self) -> int:
        return self.version // 1000

    @property
    def minor(self) -> int:
        return self.version % 1000 // 10

    @property
    def release(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def local_version(self) -> str:
        """The dist's local version: ``cu128``."""
        return f"cu{self.major}{self.minor}"

    @property
    def include(self) -> Path:
        return self.home / "include"

    @property
    def nvcc(self) -> Path | None:
        path = self.home / "bin" / "nvcc"
        return path if path.is_file() else None

    @property
    def runtime_soname(self) -> str:
        return f"libcudart.so.{self.major}"

    @property
    def runtime_requirement(self) -> str:
        """The PyPI dist that holds ``runtime_soname``: its name lost the suffix with CUDA 13."""
        suffix = "-cu12" if self.major == 12 else ""
        return f"nvidia-cuda-runtime{suffix}=={self.release}.*"

    @property
    def runpath(self) -> str:
        """Where that dist puts it, seen from the extension in site-packages/rehearsal_engine/."""
        folder = "cuda_runtime" if self.major == 12 else f"cu{self.major}"
        return f"$ORIGIN/../nvidia/{folder}/lib"

    def library(self, name: str, wheel: str) -> Path:
        """The path of one library; BuildError with the wheel to install when it is not there."""
        for folder in ("lib64", "lib"):
            path = self.home / folder / name
            if path.is_file():
                return path
        raise BuildError(
            f"{name} is neither in {self.home}/lib64 nor in {self.home}/lib",
            f"install {wheel} and link its lib directory to {self.home}/lib64",
        )

    def program(self, name: str, wheel: str) -> Path:
        path = self.home / "bin" / name
        if not path.is_file():
            raise BuildError(f"{path} does not exist", f"install {wheel} and link its bin/{name} there")
        return path


def read_toolkit(environment: Mapping[str, str]) -> Toolkit:
    """The toolkit that CUDA_HOME names; its version is the one that its headers state."""
    value = environment.get("CUDA_HOME", "")
    if not value:
        raise BuildError(
            "CUDA_HOME is not set",
            "set it to a CUDA toolkit (a directory with bin/, include/ and lib64/), "
            "for instance CUDA_HOME=/usr/local/cuda-13.0",
        )
    home = Path(value).absolute()
    header = home / "include" / "cuda_runtime_api.h"
    try:
        text = header.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise BuildError(
            f"cannot read {header}: {error.strerror}",
            "let CUDA_HOME name a complete toolkit; from PyPI the header comes with nvidia-cuda-runtime",
        ) from error
    found = re.search(r"^#define\s+CUDART_VERSION\s+(\d+)", text, re.MULTILINE)
    if found is None:
        raise BuildError(f"{header} does not state CUDART_VERSION", "let CUDA_HOME name a complete toolkit")
    toolkit = Toolkit(home, int(found[1]))
    if toolkit.major < 12:
        raise BuildError(f"CUDA {toolkit.release} is too old", "use CUDA 12.8 or newer: older ones lack sm_120")
    return toolkit


def parse_architectures(text: str) -> tuple[Architecture, ...]:
    """``9.0;12.0+PTX`` to architectures, in the order given."""
    architectures = []
    for item in filter(None, (part.strip() for part in text.split(";"))):
        found = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", item)
        if found is None:
            raise BuildError(
                f"{ARCHITECTURES_VARIABLE}: {item!r} is not a CUDA architecture",
                "write a list such as 12.0 or 9.0;12.0+PTX",
            )
        architectures.append(Architecture(found[1] + found[2] + found[3], found[4] is not None))
    if not architectures:
        raise BuildError(f"{ARCHITECTURES_VARIABLE} is empty", "set it to a list such as 12.0 or 9.0;12.0+PTX")
    return tuple(architectures)


def read_jobs(environment: Mapping[str, str]) -> int:
    """MAX_JOBS, 1 when it is not set."""
    value = environment.get("MAX_JOBS", "") or "1"
    if not value.isdecimal() or int(value) < 1:
        raise BuildError(f"MAX_JOBS is {value!r}", "set it to a whole number of at least 1, or leave it out")
    return int(value)
