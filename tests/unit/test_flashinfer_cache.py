"""FlashInfer's cache as data: places, records, old caches; and the stub of the driver's library."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from crossgrade.errors import TaskError
from crossgrade.inspect.elf import parse_elf
from crossgrade.inspect.elf_source import FileSource
from crossgrade.modules.driver_stub import declared_functions, links, make_stub
from crossgrade.modules.flashinfer_cache import BuiltModule, Place, Record, names_in, parse_architecture, place_of
from crossgrade.modules.flashinfer_child import longer

CUDA_H = """
CUresult CUDAAPI cuInit(unsigned int Flags);
#define cuCtxCreate                         cuCtxCreate_v4
#define cuMemcpyAsync __CUDA_API_PTSZ(cuMemcpyAsync_v2)
typedef void (CUDA_CB *CUhostFn)(void *userData);
"""


def test_the_place_is_what_flashinfer_makes_of_its_architectures(tmp_path: Path) -> None:
    assert place_of(tmp_path, "0.7.2", ["12.0f", "9.0a"]).cached_ops == (
        tmp_path / ".cache/flashinfer/0.7.2/90a_120f/cached_ops"
    )
    with pytest.raises(TaskError, match="needs its letter"):
        parse_architecture("12.0")
    assert parse_architecture("8.9") == (8, "9")
    for wrong in ("sm_120", "12", "12.0+PTX", ""):
        with pytest.raises(TaskError, match="is no architecture"):
            parse_architecture(wrong)


def built(library: Path) -> BuiltModule:
    status = library.stat()
    return BuiltModule(str(library), status.st_size, status.st_mtime_ns, ("sm_120f",))


def test_a_record_counts_only_what_is_still_as_it_was_proved(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.record() == Record()
    library = tmp_path / "norm.so"
    library.write_text("x")
    record = Record("digest", "/cuda", {"norm": "norm", "lost": None, "old": "old_new"}, None, {"norm": built(library)})
    place.write(record)
    assert place.record() == record
    assert record.left(["norm", "lost"]) == ()
    assert record.left(["norm", "old", "page"]) == ("old", "page")
    assert record.left(None) is None, "which modules there are, only FlashInfer knows"
    os.utime(library, (1, 1))
    assert record.left(["norm"]) == ("norm",)
    library.unlink()
    assert record.left(["norm"]) == ("norm",)
    (tmp_path / "crossgrade.json").write_text('{"schema": 1}')
    assert place.record() == Record(), "a damaged record says nothing"


def test_answers_that_were_cut_off_are_left_out(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.said() == []
    place.answers.write_text('{"kind": "place"}\n{"kind": "mod')
    assert place.said() == [{"kind": "place"}]


def test_the_names_of_an_old_cache(tmp_path: Path) -> None:
    cache = tmp_path / ".cache/flashinfer"
    ops = cache / "0.6.3/120a/cached_ops"
    for name, files in {
        "norm": ["norm.so"],
        "page": ["page.so", "build.ninja"],
        "rope": ["build.ninja"],
        "tmp": [],
    }.items():
        (ops / name).mkdir(parents=True)
        for file in files:
            (ops / name / file).touch()
    for path in (cache, ops.parent, ops):
        assert names_in(path) == ("norm", "page"), "what was not finished is none"
    other = cache / "0.5.3/120a/cached_ops/norm"
    other.mkdir(parents=True)
    assert names_in(cache) == ("norm", "page")
    (other / "norm.so").touch()
    with pytest.raises(TaskError, match="holds more than one cache"):
        names_in(cache)
    with pytest.raises(TaskError, match="there is no compiled FlashInfer module"):
        names_in(tmp_path)
    with pytest.raises(TaskError, match="cannot be read: No such file or directory"):
        names_in(tmp_path / "nowhere")


def test_a_name_that_became_longer() -> None:
    names = ["prefill_f16qk_False_kv_stride_equal", "decode_posenc_0", "xqa_1_a", "xqa_1_b"]
    assert longer("prefill_f16qk_False", names) == "prefill_f16qk_False_kv_stride_equal"
    assert longer("xqa_1", names) is None, "two are a guess"
    assert longer("decode_posenc", ["decode_posenc2"]) is None


def test_the_stub_has_the_functions_of_the_header_and_the_soname_of_the_driver(tmp_path: Path) -> None:
    assert declared_functions(CUDA_H) == ("cuCtxCreate_v4", "cuInit", "cuMemcpyAsync_v2")
    home = tmp_path / "cuda"
    with pytest.raises(TaskError, match=r"there is no libcuda\.so to link against, and none can be made: .*cuda\.h"):
        make_stub("c++", home, tmp_path, os.environ)
    (home / "include").mkdir(parents=True)
    (home / "include" / "cuda.h").write_text(CUDA_H)
    work = tmp_path / "work"
    work.mkdir()
    folder = make_stub("c++", home, work, os.environ)
    assert links("c++", home, work, {**os.environ, "LIBRARY_PATH": str(folder)})
    source = tmp_path / "user.cpp"
    source.write_text('extern "C" int cuInit(unsigned); int start() { return cuInit(0); }')
    library = tmp_path / "user.so"
    command = ["c++", "-shared", "-fPIC", str(source), "-lcuda", "-o", str(library)]
    subprocess.run(command, env={**os.environ, "LIBRARY_PATH": str(folder)}, check=True)
    with FileSource(library) as linked:
        assert "libcuda.so.1" in parse_elf(linked).needed, "as it is when it is linked beside a driver"
