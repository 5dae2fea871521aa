"""Device code in all the forms that CUDA 12.8 and 13.0 write, against cuobjdump: made on the spot."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.cuobjdump import counted_images, device_code, in_its_words, listed
from tests.support.native import build, have_gcc
from tests.support.toolkits import toolkits

from crossgrade.gates.gpu_arch import judge_gpu_arch
from crossgrade.inspect.device_packages import DeviceFile, device_packages
from crossgrade.inspect.elf import UnreadableElfError
from crossgrade.inspect.gpu_architecture import DeviceCode
from crossgrade.inspect.native import inspect_native

pytestmark = pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")

CODE = """
__global__ void scale(float *values) { values[threadIdx.x] *= 2.0f; }
extern "C" void run(float *values) { scale<<<1, 32>>>(values); }
"""
PTX = ".version {version}\n.target sm_{target}\n.address_size 64\n.visible .entry f() {{ ret; }}\n"


def nvcc(target: Path, *options: str, code: str = CODE) -> Path:
    """Compile by nvcc 13.0."""
    home = toolkits().cuda_13_0
    source = target.with_suffix(".cu")
    source.write_text(code)
    command = [str(home / "bin/nvcc"), *options, "-o", str(target), str(source)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "CUDA_HOME": str(home)})
    source.unlink()
    return target


def generate(*pairs: str) -> list[str]:
    """``120f sm_120f`` as nvcc's option."""
    return [f"-gencode=arch=compute_{pair.split()[0]},code={pair.split()[1]}" for pair in pairs]


def ptxas(home: Path, target: Path, architecture: str, *options: str) -> Path:
    source = target.with_suffix(".ptx")
    source.write_text(PTX.format(version="8.8" if architecture.endswith("f") else "8.7", target=architecture))
    command = [str(home / "bin/ptxas"), *options, "-arch", f"sm_{architecture}", str(source), "-o", str(target)]
    subprocess.run(command, check=True, capture_output=True)
    return target


def read(path: Path) -> DeviceCode:
    code = device_code(path)
    assert code is not None
    return code


@pytest.mark.parametrize("options", [(), ("-c",)], ids=["executable", "relocatable"])
@pytest.mark.parametrize(
    ("release", "architecture"),
    [*(("12.8", name) for name in ("80", "90", "90a", "100", "100a", "120", "120a")),
     *(("13.0", name) for name in ("80", "90", "90a", "100a", "100f", "120", "120a", "120f", "121f"))],
)  # fmt: skip
def test_cubins(tmp_path: Path, release: str, architecture: str, options: Sequence[str]) -> None:
    """The three layouts of marks: ABI 7, ABI 8 with a flag, ABI 8 with an attribute and a note."""
    both = toolkits()
    home = both.cuda_12_8 if release == "12.8" else both.cuda_13_0
    path = ptxas(home, tmp_path / "kernels.cubin", architecture, *options)
    code = read(path)
    assert (code.relocatable if options else code.names) == (f"sm_{architecture}",)
    assert bool(code.units) is not bool(options)
    assert [in_its_words(f"sm_{architecture}")] == list(listed(path))


FORMS = {
    "fatbin": (["--fatbin", *generate("120f sm_120f", "90 [compute_90,sm_90]")], "kernels.fatbin"),
    "static": (["--lib", *generate("120a sm_120a", "90 [compute_90,sm_90]")], "libkernels.a"),
    "static for a device link": (["--lib", "-rdc=true", *generate("120 sm_120", "120 compute_120")], "libkernels.a"),
    "object": (["-c", *generate("120a sm_120a", "90 compute_90")], "kernels.o"),
    "object for a device link": (["-c", "-rdc=true", "-arch=sm_120a"], "kernels.o"),
    "object with LTO code": (["-c", "-rdc=true", *generate("120 lto_120", "90 sm_90")], "kernels.o"),
    "cubin": (["--cubin", "-arch=sm_120a"], "kernels.cubin"),
}


@pytest.mark.parametrize("compression", ["default", "size", "speed", "balance", "none"])
@pytest.mark.parametrize("form", FORMS)
def test_what_nvcc_writes(tmp_path: Path, form: str, compression: str) -> None:
    options, name = FORMS[form]
    path = nvcc(tmp_path / name, *options, f"--compress-mode={compression}")
    code = read(path)
    said = listed(path)
    if name.endswith((".a", ".o")):
        ours = {in_its_words(name) for name in (*code.names, *code.relocatable)} - {""}
        assert ours == said.keys()
    else:
        assert counted_images(code) == said
    assert ("lto_120" in (*code.names, *code.relocatable)) == (form == "object with LTO code")
    assert ("sm_120f" in code.names) == (form == "fatbin")


class NvFatbin:
    """CUDA 12.8's library that makes fatbins."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(toolkits().cuda_12_8 / "lib64/libnvfatbin.so.12"))

    def make(self, target: Path, options: Sequence[str], *parts: tuple[str, str, bytes]) -> Path:
        """``parts`` are (function, architecture, content)."""
        handle, size = ctypes.c_void_p(), ctypes.c_size_t()
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        assert self._library.nvFatbinCreate(ctypes.byref(handle), given, len(options)) == 0
        for function, architecture, content in parts:
            tail = [b"part"] if function == "AddCubin" else [b"part", b""]
            add = getattr(self._library, f"nvFatbin{function}")
            assert add(handle, content, ctypes.c_size_t(len(content)), architecture.encode(), *tail) == 0
        assert self._library.nvFatbinSize(handle, ctypes.byref(size)) == 0
        made = ctypes.create_string_buffer(size.value)
        assert self._library.nvFatbinGet(handle, made) == 0
        target.write_bytes(made.raw)
        return target


@pytest.mark.parametrize("compression", ["-compress=true", "-compress=false"])
def test_what_nvfatbin_of_12_8_writes(tmp_path: Path, compression: str) -> None:
    home = toolkits().cuda_12_8
    cubins = {name: ptxas(home, tmp_path / f"{name}.cubin", name).read_bytes() for name in ("90", "90a", "120a")}
    parts = [("AddCubin", name, content) for name, content in cubins.items()]
    text = PTX.format(version="8.7", target="120").encode() + b"\0"
    path = NvFatbin().make(tmp_path / "all.fatbin", ["-64", compression], *parts, ("AddPTX", "120", text))
    code = read(path)
    assert set(code.names) == {"sm_90", "sm_90a", "sm_120a", "compute_120"}
    assert counted_images(code) == listed(path)


def test_embedded_data_that_the_library_loads_itself(tmp_path: Path) -> None:
    """As in cuFFT: an empty cubin in nvcc's section, the code in ordinary data, which cuobjdump passes over."""
    fatbin = nvcc(tmp_path / "kernels.fatbin", "--fatbin", *generate("120 sm_120", "90 compute_90"))
    library = tmp_path / "library.so"
    nvcc(
        tmp_path / "host.o", "-c", "-Xcompiler=-fPIC", "-arch=sm_75", code='extern "C" int nothing(void) { return 0; }'
    )
    blob = tmp_path / "blob.s"
    blob.write_text(f'.section .ldata,"aw"\n.quad 1,2,3\n.incbin "{fatbin}"\n.zero 48\n.incbin "{fatbin}"\n.zero 9\n')
    command = ["gcc", "-shared", str(blob), str(tmp_path / "host.o"), "-o", str(library)]
    subprocess.run([*command, "-Wl,--unresolved-symbols=ignore-all"], check=True, capture_output=True)
    code = read(library)
    assert {image.name: image.count for image in code.embedded} == {"sm_120": 2, "compute_90": 2}
    assert code.units == ((("sm_120", "compute_90"), 2),) or code.units == ((("compute_90", "sm_120"), 2),)
    assert "sm_120" not in listed(library)


def packages_of(root: Path) -> dict[str, DeviceFile]:
    return {file.path: file for file in device_packages(str(root), None).files}


def test_archives_and_loose_files_in_the_gate(tmp_path: Path) -> None:
    nvcc(tmp_path / "liblink.a", "--lib", "-arch=sm_90")
    nvcc(tmp_path / "loose.fatbin", "--fatbin", *generate("90 sm_90"))
    for number, architecture in enumerate(("100f", "100a")):
        ptxas(toolkits().cuda_13_0, tmp_path / f"{number}.cubin", architecture)
        (tmp_path / f"{number}.ptx").unlink()
    report = inspect_native(tmp_path)
    packages = device_packages(str(tmp_path), None)
    verdict = judge_gpu_arch(report, "12.0", packages=packages)
    # Nobody loads an archive, and programs choose among cubins by name: warned about, and no failure.
    assert verdict.outcome == "passed"
    assert {finding.subject for finding in verdict.of_level("warning")} == {"0.cubin", "1.cubin", "loose.fatbin"}
    assert [finding.subject for finding in verdict.of_level("note")] == ["liblink.a"]
    assert "1 file of device code" in verdict.of_level("warning")[0].message


@pytest.mark.skipif(shutil.which("ar") is None, reason="binutils are not installed")
def test_archives_of_binutils(tmp_path: Path) -> None:
    """Long names, an odd length, a member that is no object; a thin archive is said to be not read."""
    long = "a_member_whose_name_is_longer_than_the_sixteen_bytes_of_its_header.o"
    nvcc(tmp_path / long, "-c", "-arch=sm_120a")
    (tmp_path / "odd.txt").write_bytes(b"odd")
    (tmp_path / "empty.o").write_bytes(b"")
    members = [str(tmp_path / name) for name in ("odd.txt", long, "empty.o")]
    subprocess.run(["ar", "rcs", str(tmp_path / "whole.a"), *members], check=True, capture_output=True)
    subprocess.run(["ar", "rcT", str(tmp_path / "thin.a"), members[1]], check=True, capture_output=True)
    whole = read(tmp_path / "whole.a")
    # cuobjdump itself ends at the first member that is no object file.
    assert {in_its_words(name) for name in whole.relocatable} == set(listed(tmp_path / long))
    with pytest.raises(UnreadableElfError, match="thin archive"):
        device_code(tmp_path / "thin.a")
    thin = packages_of(tmp_path)["thin.a"]
    assert "not read" in thin.unreadable


def with_data(tmp_path: Path, data: bytes) -> Path:
    """A library with these bytes in a section that is searched, beside an empty section of nvcc."""
    (tmp_path / "data").write_bytes(data)
    head = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0)
    section = (
        f'.section .nv_fatbin,\\"a\\"\\n.byte {",".join(map(str, head))}\\n'
        '.section .ldata,\\"aw\\"\\n.incbin \\"data\\"\\n.text'
    )
    code = f'asm("{section}"); int f(void) {{ return 1; }}'
    return build(tmp_path / "library.so", code, options=[f"-Wa,-I{tmp_path}"])


def test_what_only_begins_like_a_container_is_passed_over(tmp_path: Path) -> None:
    """Tools hold such bytes; many thousands of them are hostile, and must not keep the reader busy."""
    real = nvcc(tmp_path / "kernels.fatbin", "--fatbin", *generate("120 sm_120")).read_bytes()
    false = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 40) + bytes(range(1, 41))
    too_long = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 40)
    code = read(with_data(tmp_path, false * 50 + too_long + b"tail" + real + too_long))
    assert {image.name: image.count for image in code.embedded} == {"sm_120": 1}
    with pytest.raises(UnreadableElfError):
        device_code(with_data(tmp_path, false * 20_000))


def test_a_header_that_two_blocks_share_is_found(tmp_path: Path) -> None:
    real = nvcc(tmp_path / "kernels.fatbin", "--fatbin", *generate("120 sm_120")).read_bytes()
    for cut in (0, 1, 4, 8, 15, 16):
        code = read(with_data(tmp_path, b"x" * ((1 << 20) - cut) + real))
        assert {image.name: image.count for image in code.embedded} == {"sm_120": 1}, cut
