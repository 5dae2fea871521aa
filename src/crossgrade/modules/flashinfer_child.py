"""Builds FlashInfer modules from inside the environment that FlashInfer is in.

A copy of this file is run by the candidate's own Python. It is never imported by crossgrade, and imports nothing of
it. It reads a request as JSON from standard input and appends its answers, one JSON object a line, to the
file named there:

    request   {"answers": PATH, "names": [NAME, ...] or null for all, "strict": true to build nothing where one is
               missing, "same_as_gpu": true to build nothing that FlashInfer would not look for on such a GPU,
               "jobs": N} or {"answers": PATH, "load": [LIBRARY, ...]}
    answers   {"kind": "place", "jit": FOLDER, "version": V, "for_gpu": {"12.0": "12.0f"}}
              {"kind": "found", "names": {asked for: FlashInfer's name}, "missing": [...], "errors": {generator: text}}
              {"kind": "module", "name": NAME, "state": "built" | "ready" | "shipped" | "failed", "seconds": S,
               "compiled": commands that were run, "library": PATH, "error": text}
              {"kind": "loaded", "library": PATH, "error": text, "" when it loads}

A module is built as FlashInfer does it on first use: `JitSpec.build`, one ninja in the module's own folder.
FlashInfer's `build_jit_specs` is not used: it runs one ninja above all modules, whose log lies elsewhere, so that the
server's own ninja knows nothing of it and compiles every module again (measured with FlashInfer 0.7.2).
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

TAIL_LINES = 100  # of a failed build's output, kept in the answer


def tell(line: str) -> None:
    """For people: to standard output, which goes to the run's log and progress line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Absent:
    """Stands for the module of a generator that failed: FlashInfer's list goes on without it."""

    name = "absent"

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Answers:
    """The file of answers; each line is on the disk when `say` returns."""

    def __init__(self, path: str) -> None:
        self._path = path

    def say(self, kind: str, **values: Any) -> None:
        with open(self._path, "a", encoding="utf-8") as stream:  # noqa: PTH123 - a program for any Python from 3.10 on
            stream.write(json.dumps({"kind": kind, **values}) + "\n")
            stream.flush()
            os.fsync(stream.fileno())


def for_gpu() -> dict[str, str]:
    """What FlashInfer would compile for on a GPU of each capability asked for, were it not told: {"12.0": "12.0f"}."""
    context = importlib.import_module("flashinfer.compilation_context").CompilationContext
    found = {}
    for architecture in os.environ["FLASHINFER_CUDA_ARCH_LIST"].split(" "):
        major, minor = (int(part.rstrip("af")) for part in architecture.split("."))
        normalize = getattr(context, "_normalize_cuda_arch", None)
        text = f"{minor}a" if major >= 9 else str(minor)  # FlashInfer 0.6.3, CompilationContext.__init__
        if normalize is not None:
            text = str(normalize(major, minor)[1])
        found[f"{major}.{minor}"] = f"{major}.{text}"
    return found


def by_generator(name: str) -> Any:
    """The module from `gen_NAME_module` when FlashInfer has one that asks for nothing; else None."""
    for place in ("flashinfer.aot", "flashinfer.jit"):
        generator = getattr(importlib.import_module(place), f"gen_{name}_module", None)
        if generator is None:
            continue
        parameters = inspect.signature(generator).parameters.values()
        if any(
            one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters
        ):
            continue
        spec = generator()
        if getattr(spec, "name", None) == name:
            return spec
    return None


def listed(errors: dict[str, str]) -> dict[str, Any]:
    """All modules that FlashInfer lists for these architectures, by name: what its own ahead-of-time build makes.

    A generator that fails (one compiles and needs cuBLAS's headers) takes only its own module out of the list.
    """
    aot = importlib.import_module("flashinfer.aot")
    for name, generator in list(vars(aot).items()):
        alone = name.startswith("gen_") and callable(generator) and not inspect.isgeneratorfunction(generator)
        if alone and name != "gen_all_modules":
            setattr(aot, name, _guarded(name, generator, errors))
    try:
        aot.register_default_modules()
    except Exception as error:  # noqa: BLE001 - anything may go wrong in there; what was listed before it still counts
        errors["gen_all_modules"] = f"{type(error).__name__}: {error}"
    specs = importlib.import_module("flashinfer.jit.core").jit_spec_registry.get_all_specs()
    return {name: spec for name, spec in specs.items() if hasattr(spec, "sources")}


def _guarded(name: str, generator: Callable[..., Any], errors: dict[str, str]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return generator(*arguments, **named)
        except Exception as error:  # noqa: BLE001 - as above
            errors[name] = f"{type(error).__name__}: {error}"
            return Absent()

    return call


def longer(name: str, names: Sequence[str]) -> str | None:
    """The one name that begins with this one, as 0.7.2's `…_f16qk_False_kv_stride_equal` for 0.6.3's `…_f16qk_False`.

    None where there is none or more than one.
    """
    found = [one for one in names if one.startswith(f"{name}_")]
    return found[0] if len(found) == 1 else None


def find(wanted: Sequence[str] | None, answers: Answers) -> tuple[list[Any], list[str]]:
    """The specs of what is wanted, all that FlashInfer lists when that is None; and the names that it does not know."""
    errors: dict[str, str] = {}
    if wanted is None:
        specs = listed(errors)
        answers.say("found", names={name: name for name in specs}, missing=[], errors=errors)
        return list(specs.values()), []
    found: dict[str, Any] = {}
    for name in wanted:
        spec = by_generator(name) if re.fullmatch(r"\w+", name) else None
        if spec is not None:
            found[name] = spec
    if len(found) < len(wanted):
        known = listed(errors)
        for name in wanted:
            other = name if name in known else longer(name, list(known))
            if name not in found and other is not None:
                found[name] = known[other]
    missing = [name for name in wanted if name not in found]
    answers.say("found", names={name: spec.name for name, spec in found.items()}, missing=missing, errors=errors)
    return list({spec.name: spec for spec in found.values()}.values()), missing


def commands_left(spec: Any) -> int:
    """How many commands ninja would run for the module. Raises RuntimeError with ninja's words when it cannot say."""
    spec.write_ninja()
    argv = ["ninja", "-n", "-C", str(spec.build_dir), "-f", str(spec.ninja_path)]
    asked = subprocess.run(argv, capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        raise RuntimeError(f"ninja could not read the build file: {asked.stdout}{asked.stderr}")
    return sum(1 for line in asked.stdout.splitlines() if re.match(r"\[\d+/\d+\] ", line))


def run_ninja(workdir: Any, ninja_file: Any, verbose: bool, max_jobs: int | None = None) -> None:  # noqa: ARG001
    """Stands in for FlashInfer's function: the same command in the same folder, whose output is shown as it comes.

    FlashInfer's own either shows it, and then says nothing of it in its error, or keeps it to itself until the end.
    Raises RuntimeError with the end of the output.
    """
    argv = ["ninja", "-v", "-C", str(workdir), "-f", str(ninja_file), "-j", str(max_jobs or os.environ["MAX_JOBS"])]
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    with subprocess.Popen(
        argv, cwd=workdir, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace"
    ) as ninja:
        for line in ninja.stdout or ():
            tail.append(line.rstrip())
            tell(f"{os.path.basename(workdir)}: {line.rstrip()}")  # noqa: PTH119 - as above
    if ninja.returncode != 0:
        raise RuntimeError("\n".join(tail))


def build(spec: Any) -> dict[str, Any]:
    """Build one module as its first use would, and ask ninja whether anything were left to do."""
    began = time.monotonic()
    if getattr(spec, "is_aot", False):
        return {"state": "shipped", "seconds": 0.0, "compiled": 0, "library": str(spec.get_library_path())}
    left = commands_left(spec)
    if left:
        tell(f"building {spec.name}: {left} commands")
        spec.build(True, need_lock=True)
        if commands_left(spec):
            raise RuntimeError("ninja would compile it again: the server would not use what was built")
    return {
        "state": "built" if left else "ready",
        "seconds": round(time.monotonic() - began, 1),
        "compiled": left,
        "library": str(spec.jit_library_path),
    }


def build_all(specs: list[Any], jobs: int, answers: Answers) -> bool:
    """Largest modules first, so that none is left alone at the end. True when all succeeded."""
    specs = sorted(specs, key=lambda spec: -len(spec.sources))
    workers = max(1, min(jobs, len(specs)))
    os.environ["MAX_JOBS"] = str(max(1, jobs // workers))  # of each ninja
    core: Any = importlib.import_module("flashinfer.jit.core")
    if hasattr(core, "run_ninja"):
        core.run_ninja = run_ninja
    succeeded = True
    with ThreadPoolExecutor(workers) as pool:
        running = {pool.submit(build, spec): spec for spec in specs}
        for number, done in enumerate(as_completed(running), start=1):
            name = running[done].name
            try:
                answer = done.result()
                word = f"{answer['state']} in {answer['seconds']} s"
            except Exception as error:  # noqa: BLE001 - each module's failure is told on its own
                succeeded = False
                answer = {"state": "failed", "error": str(error) or traceback.format_exc()}
                word = "failed"
            tell(f"{name}: {word} ({number} of {len(specs)})")
            answers.say("module", name=name, **answer)
    return succeeded


def load(libraries: Sequence[str], answers: Answers) -> bool:
    """Load each library as FlashInfer does, after torch and its libraries. True when all could be loaded."""
    importlib.import_module("flashinfer.jit")
    load_module = importlib.import_module("tvm_ffi").load_module
    succeeded = True
    for library in libraries:
        try:
            load_module(library)
            error = ""
        except Exception as problem:  # noqa: BLE001 - told for each library on its own
            error = str(problem) or type(problem).__name__
            succeeded = False
        answers.say("loaded", library=library, error=error)
    return succeeded


def main() -> int:
    request = json.load(sys.stdin)
    answers = Answers(request["answers"])
    if "load" in request:
        return 0 if load(request["load"], answers) else 1
    place = importlib.import_module("flashinfer.jit.env")
    version = importlib.import_module("flashinfer.version").__version__
    picks = for_gpu()
    answers.say("place", jit=str(place.FLASHINFER_JIT_DIR), version=str(version), for_gpu=picks)
    told = os.environ["FLASHINFER_CUDA_ARCH_LIST"].split(" ")
    if request["same_as_gpu"] and sorted(told) != sorted(picks[one.rstrip("af")] for one in told):
        return 1
    specs, missing = find(request["names"], answers)
    if missing and request["strict"]:
        return 1
    return 0 if build_all(specs, int(request["jobs"]), answers) else 1


if __name__ == "__main__":
    sys.exit(main())
