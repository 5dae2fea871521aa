"""Which numpy an extension module was compiled against, from the texts that numpy's headers leave in it.

Sources, read in numpy 1.26.4, 2.2.6 and 2.4.6 (`numpy/core/include/numpy/__multiarray_api.h` or `numpy/_core/…`, the
function `_import_array`, and `numpyconfig.h`):

- Headers of numpy 1 import ``numpy.core._multiarray_umath``. Numpy 2 answers that import without an ``_ARRAY_API``, so
  such a module cannot be imported.
- Headers of numpy 2 import ``numpy._core._multiarray_umath`` first, and the old name where that is not there: one build
  serves both. Since numpy 1.25 they name the oldest numpy that the build works with (``NPY_TARGET_VERSION``, by
  ``NPY_FEATURE_VERSION_STRING``) in the message that they print with an older one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from crossgrade.inspect.elf import ElfFile, Source

_MARK = b"._multiarray_umath\0"
_TARGET = re.compile(rb"against NumPy C-API version 0x%x \(NumPy (\d{1,3})\.(\d{1,3})\)")
# Most of an environment's read-only data lies in a few huge libraries of kernels, none of which uses numpy.
MAX_READ_ONLY_DATA = 16 << 20


@dataclass(frozen=True)
class NumpyApi:
    """``major`` is that of the headers (1 or 2), ``oldest`` the numpy that the build asks for; None if it says none."""

    major: int
    oldest: tuple[int, int] | None


def numpy_api(source: Source, elf: ElfFile) -> NumpyApi | None:
    """How a file uses numpy's C-API; None where it does not, or has more than 16 MiB of read-only data.

    Raises `UnreadableElfError`.
    """
    for section in elf.sections:
        if section.name == ".rodata" and section.kind == 1 and section.size <= MAX_READ_ONLY_DATA:
            return numpy_api_in(source.read(section.offset, section.size))
    return None


def numpy_api_in(data: bytes) -> NumpyApi | None:
    """The same of read-only data."""
    if _MARK not in data:
        return None
    new, old = b"\0numpy._core" + _MARK in b"\0" + data, b"\0numpy.core" + _MARK in b"\0" + data
    if not new and not old:
        return None
    target = _TARGET.search(data)
    return NumpyApi(2 if new else 1, (int(target[1]), int(target[2])) if target else None)
