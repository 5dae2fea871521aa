"""Which CUDA release a library belongs to, by its soname. Pure, over `knowledge/sonames.yml`.

The number in a soname is that of the library, not of CUDA: ``libcusparse.so.12`` comes with CUDA 12 and with CUDA 13,
``libcufft.so.12`` with CUDA 13. What the table does not know is not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType

from crossgrade.inspect.loading import LoadSet
from crossgrade.knowledge import table

# auditwheel and its like put a hash into the names of libraries that they copy: libcudart.3eda8113.so.13.
_HASHED = re.compile(r"(?P<stem>lib.+?)[-.][0-9a-f]{8}(?P<rest>\.so(\.\d+)*)$")
_LOOKS_LIKE_CUDA = re.compile(r"lib(cu(da|blas|dnn|fft|file|pti|rand|solver|sparse|tensor)|nv|nccl|npp)")


@dataclass(frozen=True)
class CudaLibrary:
    """One row of the table: ``cuda`` is the CUDA major release, None where releases share the soname."""

    soname: str
    name: str
    cuda: int | None
    dists: tuple[str, ...]


@lru_cache(maxsize=8192)
def cuda_library(name: str) -> CudaLibrary | None:
    """What a soname or file name stands for; None for one that is not in the table.

    A hash in the name does not count, and neither do further numbers: ``libnvjpeg-1a359ba7.so.13.0.1`` is
    ``libnvjpeg.so.13``.
    """
    match = _HASHED.match(name)
    plain = f"{match['stem']}{match['rest']}" if match else name
    known = _known()
    while ".so." in plain:
        if plain in known:
            return known[plain]
        plain = plain.rpartition(".")[0]
    return known.get(plain)


def looks_like_cuda(name: str) -> bool:
    """Whether a soname has the form of one of NVIDIA's libraries, known or not."""
    return _LOOKS_LIKE_CUDA.match(name) is not None


def known_libraries(loaded: LoadSet) -> tuple[str, ...]:
    """The sonames of the table among what a load set holds and what it lacks, in order of name."""
    names = [item.elf.soname or item.path.rpartition("/")[2] for item in loaded.objects]
    names += [missing.soname for missing in loaded.missing]
    found = {library.soname for name in names if (library := cuda_library(name)) is not None}
    return tuple(sorted(found))


@cache
def _known() -> Mapping[str, CudaLibrary]:
    rows: dict[str, CudaLibrary] = {}
    for row in table("sonames"):
        soname, cuda = str(row["soname"]), row.get("cuda")
        dists = tuple(str(row["dist"]).split(" or "))
        rows[soname] = CudaLibrary(soname, str(row["library"]), cuda if isinstance(cuda, int) else None, dists)
    return MappingProxyType(rows)
