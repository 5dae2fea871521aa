"""A CUDA toolkit as it is on disk: its compiler, its headers, and whether the two belong together.

Sources: the toolkit's own `version.json`, `include/cuda.h`, `include/cuda_runtime_api.h` and
`include/crt/host_config.h`; the check `_CCCL_CUDACC_EQUAL` in `cuda/std/__cccl/cuda_toolkit.h` of CCCL 3.0
(CUDA 13.0), which stops a compilation whose nvcc and headers differ in major or minor release.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from crossgrade.errors import CrossgradeError
from crossgrade.inspect.query import Runner, programs_on_path
from crossgrade.process import StartError

QUERY_SECONDS = 30.0  # nvcc answers in 10 ms from a warm cache, but a cold network disk takes its time
HEADER_BYTES = 1 << 20

_NVCC_VERSION = re.compile(r"release (\d+)\.(\d+), V([\d.]+)")
_NVCC_FOLDER = re.compile(r"^#\$ _HERE_=(/.*)$", re.MULTILINE)
_CUDART = re.compile(r"^\s*#\s*define\s+CUDART_VERSION\s+(\d+)", re.MULTILINE)
_CUDA = re.compile(r"^\s*#\s*define\s+CUDA_VERSION\s+(\d+)", re.MULTILINE)
_NEWEST_GCC = re.compile(r"^\s*#\s*if\s+__GNUC__\s*>\s*(\d+)\s*$", re.MULTILINE)
# Where runtime libraries stand: the runfile and the packages, PyPI wheels, Debian's own package.
_LIBRARY_FOLDERS = (
    "lib64",
    "lib",
    "targets/x86_64-linux/lib",
    "targets/sbsa-linux/lib",
    "lib/x86_64-linux-gnu",
)


class ToolkitError(CrossgradeError, ValueError):
    """The directory is no CUDA toolkit, or one that cannot be used as it is."""


@dataclass(frozen=True)
class ToolkitFacts:
    """One toolkit. `unknown` says for each field that is None why it could not be observed.

    `home` is the path as it was named, `real_home` what it leads to. `nvcc` is the path of the compiler,
    `nvcc_version` its full version (``13.0.88``), `header_version` what the headers are of (``13.0``),
    `newest_gcc` the newest gcc release that nvcc takes. `cudart` is the path of libcudart.so, the name that a
    linker needs; None where only numbered names exist, as in PyPI wheels.
    """

    home: str
    real_home: str
    nvcc: str
    nvcc_version: str | None
    header_version: str | None
    newest_gcc: int | None
    cudart: str | None
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def release(self) -> str | None:
        """Major and minor release of the compiler: ``13.0``."""
        return ".".join(self.nvcc_version.split(".")[:2]) if self.nvcc_version else None

    @property
    def name(self) -> str:
        """For messages: ``CUDA 13.0``."""
        release = self.release or self.header_version
        return f"CUDA {release}" if release else f"the toolkit in {self.home}"


def read_toolkit(cuda_home: Path, runner: Runner) -> ToolkitFacts:
    """Read a toolkit. nvcc is started (``--version``) only where no `version.json` says its version.

    Raises ToolkitError where the directory does not exist or has no nvcc.
    """
    nvcc = cuda_home / "bin" / "nvcc"
    if not cuda_home.is_dir():
        raise ToolkitError(f"{cuda_home} is not a directory", remedy="Name the directory that holds bin/nvcc.")
    if not (nvcc.is_file() and os.access(nvcc, os.X_OK)):
        raise ToolkitError(
            f"{cuda_home} has no program bin/nvcc, so it is not a CUDA toolkit to build with",
            remedy="Name the directory that holds bin/nvcc, or install the compiler (nvidia-cuda-nvcc).",
        )
    unknown: dict[str, str] = {}
    include = cuda_home / "include"
    version = _stated_version(cuda_home / "version.json")
    if version is None:
        try:
            version = _asked_version(nvcc, runner)
        except (StartError, ValueError) as error:
            unknown["nvcc_version"] = str(error)
    headers = header_version(include)
    if headers is None:
        unknown["header_version"] = f"{include} has no cuda_runtime_api.h or cuda.h that states a version"
    newest_gcc = newest_gcc_of(_text(include / "crt" / "host_config.h"))
    if newest_gcc is None:
        unknown["newest_gcc"] = f"{include}/crt/host_config.h is missing or states no limit for gcc"
    cudart = find_library(cuda_home, "libcudart.so")
    if cudart is None:
        unknown["cudart"] = f"{cuda_home} has no libcudart.so in {', '.join(_LIBRARY_FOLDERS[:2])}"
    return ToolkitFacts(
        home=str(cuda_home),
        real_home=os.path.realpath(cuda_home),
        nvcc=str(nvcc),
        nvcc_version=version,
        header_version=headers,
        newest_gcc=newest_gcc,
        cudart=cudart,
        unknown=unknown,
    )


def mix_problem(toolkit: ToolkitFacts) -> str:
    """Why compiler and headers don't belong together; empty where they do or where one is unknown. Pure."""
    release, headers = toolkit.release, toolkit.header_version
    if release is None or headers is None or release == headers:
        return ""
    return (
        f"{toolkit.home} mixes nvcc {toolkit.nvcc_version} with headers of CUDA {headers}: "
        "a compilation stops with `CUDA compiler and CUDA toolkit headers are incompatible`"
    )


def require_matched(toolkit: ToolkitFacts) -> None:
    """Raises ToolkitError when compiler and headers are of different releases."""
    if problem := mix_problem(toolkit):
        raise ToolkitError(
            problem,
            remedy="Install all parts in one release, for example cuda-toolkit[nvcc,crt,cudart,cccl]"
            f"=={toolkit.release}.*",
        )


def find_toolkits(
    environment: Mapping[str, str], runner: Runner, *, system: Path = Path("/")
) -> tuple[tuple[ToolkitFacts, ...], tuple[str, ...]]:
    """The toolkits of a machine, each once, and why a place that is named holds none.

    Looked for as builds do: CUDA_HOME, CUDA_PATH, nvcc on PATH, then /usr/local/cuda and /usr/local/cuda-*.
    """
    variables = ("CUDA_HOME", "CUDA_PATH")
    named = [(f"{name}={environment[name]}", Path(environment[name])) for name in variables if environment.get(name)]
    programs = programs_on_path(environment.get("PATH", ""), "nvcc")
    named += [(f"{nvcc} on PATH", home_of(nvcc, runner)) for nvcc in programs[:1]]
    local = system / "usr" / "local"
    places = [local / "cuda", *sorted(local.glob("cuda-*"))]
    named += [(str(place), place) for place in places if (place / "bin" / "nvcc").exists()]
    found: dict[str, ToolkitFacts] = {}
    problems = []
    for origin, home in named:
        if os.path.realpath(home) in found:
            continue
        try:
            toolkit = read_toolkit(home, runner)
        except ToolkitError as error:
            problems.append(f"{origin}: {error.message}")
        else:
            found[toolkit.real_home] = toolkit
    return tuple(found.values()), tuple(problems)


def home_of(nvcc: Path, runner: Runner) -> Path:
    """The toolkit that an nvcc belongs to: the directory above the one with its `nvcc.profile`.

    Where there is none beside it, it may be a script that starts the real one, as Debian's package has it;
    then nvcc is asked (``--dryrun`` prints the directory it works from and compiles nothing).
    """
    for program in (nvcc, nvcc.resolve()):
        if (program.parent / "nvcc.profile").is_file():
            return program.parent.parent
    try:
        answer = runner([str(nvcc), "--dryrun", "-c", "nothing.cu"], timeout=QUERY_SECONDS)
    except StartError:
        return nvcc.parent.parent
    match = _NVCC_FOLDER.search(answer.stderr + answer.stdout)
    return Path(match[1]).parent if match else nvcc.parent.parent


def find_library(cuda_home: Path, name: str) -> str | None:
    """The path of a library by its file name in the directories where toolkits keep theirs, or None."""
    for folder in _LIBRARY_FOLDERS:
        path = cuda_home / folder / name
        if path.is_file():
            return str(path)
    return None


def newest_gcc_of(host_config: str) -> int | None:
    """The newest gcc release that the text of `crt/host_config.h` allows; None where it states no limit."""
    match = _NEWEST_GCC.search(host_config)
    return int(match[1]) if match else None


def nvcc_version_of(output: str) -> str | None:
    """The full version in the output of ``nvcc --version``: ``13.0.88``."""
    match = _NVCC_VERSION.search(output)
    return match[3] if match else None


def release_of(number: int) -> str:
    """``13.0`` for 13000, the form in which CUDA_VERSION and CUDART_VERSION are written."""
    return f"{number // 1000}.{number % 1000 // 10}"


@dataclass(frozen=True)
class DriverJudgement:
    """Whether a driver serves a CUDA release. `fits` is None where no row of the table says."""

    fits: bool | None
    message: str
    remedy: str = ""


def judge_driver(driver: str | None, cuda_release: str) -> DriverJudgement:
    """Whether a driver (``580.95.05``; None where there is none) runs programs of a CUDA release (``13.0``).

    By `knowledge/drivers.yml`: the minimum that minor-version compatibility asks for. A driver older than the
    release's own one cannot compile PTX of that release; the message says so.
    """
    from crossgrade.knowledge import table

    if driver is None:
        return DriverJudgement(None, f"no NVIDIA driver on this machine to run CUDA {cuda_release}")
    rows = [row for row in table("drivers") if row["cuda"] in (cuda_release, f"{cuda_release.split('.')[0]}.x")]
    minimums = [str(row["minimum"]) for row in rows if "minimum" in row]
    if not minimums:
        return DriverJudgement(None, f"which driver CUDA {cuda_release} needs is not known")
    if not is_at_least(driver, minimums[0]):
        return DriverJudgement(
            False,
            f"driver {driver} is too old for CUDA {cuda_release}, which needs {minimums[0]} or newer",
            f"First install a driver of branch {minimums[0].split('.')[0]} or newer and reboot.",
        )
    message = f"driver {driver} runs CUDA {cuda_release} (needs {minimums[0]} or newer)"
    paired = [str(row["paired"]) for row in rows if "paired" in row]
    if paired and not is_at_least(driver, paired[0]):
        message += f"; older than {paired[0]}, which belongs to CUDA {cuda_release}: it can't compile its PTX"
    return DriverJudgement(True, message)


def is_driver_version(text: str) -> bool:
    """Whether a text has the form of a driver's version: ``580``, ``580.95.05``."""
    return re.fullmatch(r"[0-9]{3,4}(\.[0-9]+)*", text) is not None


def is_at_least(driver: str, minimum: str) -> bool:
    """Whether a driver is as new as another one; a branch (``580``) is taken for its newest driver."""
    own = version_numbers(driver)
    return own >= version_numbers(minimum)[: len(own)]


def version_numbers(version: str) -> tuple[int, ...]:
    """``580.95.05`` as (580, 95, 5), to be compared."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _stated_version(path: Path) -> str | None:
    """nvcc's version in version.json, which the runfile and the packages write and wheels don't."""
    try:
        document = json.loads(_text(path) or "null")
        version = document["cuda_nvcc"]["version"]
    except (ValueError, LookupError, TypeError):
        return None
    return version if isinstance(version, str) and re.match(r"\d+\.\d+\.\d+", version) else None


def stated_cuda_version(cuda_home: Path) -> str | None:
    """The release of the whole toolkit in its version.json (``13.0.2``); None where it has none, as wheels have."""
    try:
        version = json.loads(_text(cuda_home / "version.json") or "null")["cuda"]["version"]
    except (ValueError, LookupError, TypeError):
        return None
    return version if isinstance(version, str) else None


def _asked_version(nvcc: Path, runner: Runner) -> str:
    answer = runner([str(nvcc), "--version"], timeout=QUERY_SECONDS)
    version = nvcc_version_of(answer.stdout) if answer.succeeded else None
    if version is None:
        said = (answer.stderr.strip() or answer.stdout.strip() or "nothing").splitlines()[0]
        raise ValueError(f"{nvcc} --version: {answer.outcome()}, it said: {said}")
    return version


def header_version(include: Path) -> str | None:
    """The release that the headers in a directory are of (``13.0``); None where none states it."""
    for name, pattern in (("cuda_runtime_api.h", _CUDART), ("cuda.h", _CUDA)):
        if match := pattern.search(_text(include / name)):
            return release_of(int(match[1]))
    return None


def _text(path: Path) -> str:
    """The start of a text file; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(HEADER_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
