"""Our reading of device code against cuobjdump, over all files of two real stacks.

The stacks are those that `invoke bench inspect` and the other oracle tests keep; they are not made here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cuobjdump import counted_images, device_code, in_its_words, listed

from crossgrade.gates.gpu_arch import judge_gpu_arch
from crossgrade.inspect.device_packages import device_packages
from crossgrade.inspect.elf import UnreadableElfError
from crossgrade.inspect.environment import elf_files
from crossgrade.inspect.gpu_architecture import DeviceCode
from crossgrade.inspect.native import inspect_native

KEPT = Path("~/.cache/crossgrade/oracle").expanduser()
STACKS = ("sglang-CUDA-12.8", "sglang-CUDA-13")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

# TensorRT-LLM's kernels carry what they are built for in their names.
_NAMED = re.compile(r"sm(10[03][af])", re.IGNORECASE)
_EACH = 10  # one cubin in so many is shown to cuobjdump: it takes 10 ms for each


def stack(name: str) -> Path:
    place = KEPT / name
    if not place.is_dir():
        pytest.skip(f"{place} is not there")
    return place


def categories(root: Path) -> Iterator[tuple[str, Path]]:
    """Each file that may hold device code, with its category."""
    cubins = 0
    for path in map(Path, elf_files(str(root))):
        if path.suffix == ".cubin":
            cubins += 1
            if cubins % _EACH == 0:
                yield "cubin", path
        elif path.suffix == ".o":
            yield "object", path
        else:
            yield "module", path
    for path in sorted(root.rglob("*.a")):
        yield "archive", path


def differs(category: str, code: DeviceCode | None, said: Counter[str]) -> bool:
    if code is None:
        return bool(said)
    if category in ("archive", "object"):  # counted by name only
        return {in_its_words(name) for name in (*code.names, *code.relocatable)} - {""} != said.keys()
    return counted_images(code) != said


@pytest.mark.parametrize("name", STACKS)
def test_cuobjdump_lists_the_same(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = stack(name)
    agreed: Counter[str] = Counter()
    beyond: Counter[str] = Counter()
    disagreed: list[str] = []
    for category, path in categories(root):
        try:
            code = device_code(path)
        except UnreadableElfError as error:
            disagreed.append(f"{path}: {error.reason}")
            continue
        if category == "module" and code is None and b"nv_fatbin" not in path.read_bytes():
            agreed["file without device code"] += 1
            continue
        said = listed(path)
        if differs(category, code, said):
            disagreed.append(f"{path}: cuobjdump lists {dict(said)}, we read {code}")
        else:
            agreed[category if code else f"{category} without device code"] += 1
        for image in (*code.images, *code.embedded) if code else ():
            kind = "f variants" if image.name in in_its_words(image.name) + "f" and image.variant == "f" else ""
            beyond["LTO" if image.kind == "lto" else kind] += image.count
        beyond["in ordinary data"] += sum(image.count for image in code.embedded) if code else 0
    beyond.pop("", None)
    with capsys.disabled():
        table = ", ".join(f"{count} {what}" for what, count in sorted(agreed.items()))
        more = ", ".join(f"{count} {what}" for what, count in sorted(beyond.items()))
        print(f"\n{name}: agreed on {table}; disagreed on {len(disagreed)}; beyond it: {more}")  # noqa: T201 - the table
    assert not disagreed, "\n".join(disagreed[:20])
    assert agreed["module"] > 20


def test_cubins_are_for_what_their_names_say() -> None:
    """Of f variants cuobjdump says nothing; the names of these files do."""
    agreed: Counter[str] = Counter()
    for path in stack(STACKS[0]).rglob("*.cubin"):
        if match := _NAMED.search(path.name):
            code = device_code(path)
            assert code is not None
            assert code.names == (f"sm_{match[1].lower()}",), path
            agreed[match[1].lower()] += 1
    assert agreed["100f"] > 1000
    assert agreed["103a"] > 100


@pytest.mark.parametrize("name", STACKS)
def test_stacks_that_serve_on_sm_120_have_no_failure(name: str) -> None:
    """They are known to serve there: what is said of them must be no failure, and a module that lacks is named."""
    root = stack(name)
    report = inspect_native(root)
    assert report.interpreter is not None
    packages = device_packages(report.root, report.interpreter.site_packages)
    verdict = judge_gpu_arch(report, "12.0", packages=packages)
    assert verdict.outcome == "passed", [finding for finding in verdict.findings if finding.level == "failure"]
    dists = verdict.figures["dists"]
    assert isinstance(dists, dict)
    verdicts = {dist.rpartition(" ")[0]: row["verdict"] for dist, row in dists.items() if isinstance(row, dict)}
    kernels = "sgl-kernel" if "sgl-kernel" in verdicts else "sglang-kernel"
    assert verdicts[kernels] == "covers in some modules"
    assert verdicts["torch"] == "covers"
    assert verdicts["flashinfer-python"] == "built at first use"
    falls = next(found for found in verdict.of_level("warning") if found.subject.startswith(f"{kernels} "))
    assert "flash_ops.abi3.so" in falls.message
    assert "flashmla_ops.abi3.so" in falls.message
    assert "common_ops" not in falls.message
    for elsewhere in ("9.0", "10.0"):
        assert judge_gpu_arch(report, elsewhere, packages=packages).outcome == "passed"
    assert judge_gpu_arch(report, "7.0", packages=packages).outcome == "failed"
