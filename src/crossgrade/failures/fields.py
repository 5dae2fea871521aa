"""What follows from the words that a pattern named: the CUDA release of a soname, a symbol as people write it. Pure.

A field may be an empty text: it then only says that something is so, for the choice between parts of a template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache

from crossgrade.inspect.mangled import demangled, without_names
from crossgrade.knowledge import Row, table

Fields = Mapping[str, str]
_LONGEST = 240  # characters of one value of the context
_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
_SONAME = re.compile(r"(lib[A-Za-z]+[A-Za-z0-9]*?)(?:[-_][\w-]*)?\.so(?:\.(\d+))?")
_TORCH = re.compile(r"(?<![0-9])(?:3c10|4c10d|2at|5torch|6caffe2)(?=[0-9A-Z])")
_PACKAGE = re.compile(r"/(?:site|dist)-packages/([\w.-]{1,80})/")
_CAPABILITY = re.compile(r"(?<![\d.])(\d{1,2}\.\d)(?![\d.])|(?:sm_?|compute_?|^)(\d{2,3})[af]?(?:\D|$)", re.IGNORECASE)
_LOCAL_CUDA = re.compile(r"\+cu(\d{2,3})\b|^cu(\d{2,3})$")
_DEFAULT_CUDA = "13"  # what an upgrade goes to, where nothing says which CUDA is wanted
# How packages call the parts that both majors of CUDA bring.
_PART_DISTS = {"cusparseLt": "cusparselt"}


def context_of(given: Mapping[str, str]) -> dict[str, str]:
    """What is known beside the output, with values in the form that templates use.

    `gpu` becomes a compute capability (``12.0``) where it holds one, `torch_cuda` a release (``13.0``); a `torch` of
    ``2.9.1+cu128`` says what `torch_cuda` is. Names that are no words are left out.
    """
    known = {name: value.strip()[:_LONGEST] for name, value in given.items() if _NAME.fullmatch(name) and value.strip()}
    if "gpu" in known:
        known["gpu"] = capability_of(known["gpu"]) or known["gpu"]
    for name in ("torch_cuda", "torch"):
        found = _LOCAL_CUDA.search(known.get(name, ""))
        if found:
            digits = found[1] or found[2]
            cuda = f"{digits[:-1]}.{digits[-1]}"
            known["torch_cuda"] = cuda if name == "torch_cuda" else known.get("torch_cuda", cuda)
    return known


def capability_of(text: str) -> str:
    """``12.0`` for ``12.0``, ``sm_120``, ``120a`` and texts that hold one of them; "" where there is none."""
    found = _CAPABILITY.search(text)
    if found is None:
        return ""
    return found[1] or f"{found[2][:-1]}.{found[2][-1]}"


def derive(groups: Mapping[str, str | None], context: Mapping[str, str]) -> dict[str, str]:
    """All fields of a match: the context, over it the groups, and what follows from them."""
    named = {name: " ".join(value.split()) for name, value in groups.items() if value}
    fields = {**context, **named}
    for name, derivation in _DERIVATIONS.items():
        if name in named:
            fields = {**fields, **derivation(groups[name] or "")}
    return {**fields, **_driver(fields)}


def _library(soname: str) -> dict[str, str]:
    row = _row_of(soname.rpartition("/")[2])
    if row is None:
        return {}
    found = {"library_words": _with_article(str(row["library"])), "library_dist": str(row["dist"])}
    if "cuda" in row:
        found["library_cuda"] = str(row["cuda"])
        found["other_cuda"] = "12" if str(row["cuda"]) == "13" else "13"
    return found


def _row_of(soname: str) -> Row | None:
    """The row of a soname, or of the library that it is a part of (`libnvrtc-builtins.so.13.0` is of NVRTC's)."""
    rows = {str(row["soname"]): row for row in table("sonames")}
    if soname in rows:
        return rows[soname]
    parts = _SONAME.fullmatch(re.sub(r"(\.so\.\d+)[\d.]*$", r"\1", soname))
    if parts is None:
        return None
    base, major = parts[1], parts[2]
    return rows.get(f"{base}.so.{major}") or rows.get(f"{base}.so.{major}.0")


def _with_article(library: str) -> str:
    return f"the {library}" if library.startswith("CUDA ") else library


def _symbol(symbol: str) -> dict[str, str]:
    found = {"function": demangled(symbol)}
    if "__cxx11" in symbol or "B5cxx11" in symbol:
        found["new_strings"] = ""
    return found


def _needed_by(path: str) -> dict[str, str]:
    package = _PACKAGE.search(path)
    return {"package": package[1]} if package else {}


def _architecture(name: str) -> dict[str, str]:
    number, suffix = name.rstrip("af"), name[len(name.rstrip("af")) :]
    dotted = f"{number[:-1]}.{number[-1]}"
    found = {"architecture_dotted": dotted + suffix, "gpu": dotted}
    row = _architectures().get(name) or _architectures().get(number)
    if row is not None:
        first = str(row["first"])
        found["first_cuda"] = max(first, "12.9", key=_release) if suffix == "f" else first
        if "last" in row:
            found["last_cuda"] = str(row["last"])
    return found


@cache
def _architectures() -> Mapping[str, Row]:
    return {str(row["architecture"]): row for row in table("architectures")}


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _part(part: str) -> dict[str, str]:
    found = {"part_dist": _PART_DISTS.get(part, part)}
    return {**found, "is_driver": ""} if part == "cuda" else found


def _driver_found(number: str) -> dict[str, str]:
    """12080, as the driver says it, is CUDA 12.8."""
    return {"driver_cuda": f"{int(number) // 1000}.{int(number) % 1000 // 10}"}


def _driver(fields: Fields) -> dict[str, str]:
    minimums = {str(row["cuda"]): str(row["minimum"]) for row in table("drivers") if "minimum" in row}
    wanted = fields.get("torch_cuda", fields.get("cuda", _DEFAULT_CUDA)).partition(".")[0]
    found = {f"driver_minimum_{cuda.partition('.')[0]}": minimum for cuda, minimum in minimums.items()}
    needed = minimums.get(f"{wanted}.x")
    return {**found, "driver_needed": needed} if needed else found


_DERIVATIONS: Mapping[str, Callable[[str], dict[str, str]]] = {
    "library": _library,
    "needed_by": _needed_by,
    "symbol": _symbol,
    "architecture": _architecture,
    "part": _part,
    "driver_found": _driver_found,
}


# ---- the tests that a row can ask for


def takes_old_strings(fields: Fields) -> bool:
    """Whether the symbol has `Ss`, the std::string of the ABI before C++11, among its types."""
    return "Ss" in without_names(fields.get("symbol", ""))


def belongs_to_torch(fields: Fields) -> bool:
    """Whether the symbol is torch's own: in one of its namespaces, or one of its C functions."""
    symbol = fields.get("symbol", "")
    return not symbol.startswith("_Z") or bool(_TORCH.search(symbol))


def architecture_was_dropped(fields: Fields) -> bool:
    """Whether a newer CUDA release no longer compiles for the architecture."""
    return "last_cuda" in fields


TESTS: Mapping[str, Callable[[Fields], bool]] = {
    test.__name__: test for test in (takes_old_strings, belongs_to_torch, architecture_was_dropped)
}
