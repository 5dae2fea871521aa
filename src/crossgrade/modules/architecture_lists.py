"""GPU architectures in each build tool's own spelling (`knowledge/build_architecture_lists.yml`). Otherwise pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from crossgrade.errors import TaskError

_ARCHITECTURE = re.compile(r"(?P<number>\d+\.\d)(?P<suffix>[a-z]?)(?P<ptx>\+PTX)?")


def spelled(architectures: Sequence[str]) -> dict[str, str]:
    """Variable → value for architectures in PyTorch's spelling (`12.0a`, `12.0f`, `9.0+PTX`).

    CROSSGRADE_CUDA_ARCHITECTURES has them as they were given, CUDAARCHS as CMake spells them (its manual on
    CMAKE_CUDA_ARCHITECTURES: `120a-real`; without `-real` there is PTX too). Raises TaskError for what is none.
    """
    from crossgrade.knowledge import table

    if not architectures:
        return {}
    parsed = [_parsed(each) for each in architectures]
    found = {
        "CROSSGRADE_CUDA_ARCHITECTURES": ";".join(architectures),
        "CUDAARCHS": ";".join(f"{n.replace('.', '')}{s}{'' if ptx else '-real'}" for n, s, ptx in parsed),
    }
    for row in table("build_architecture_lists"):
        suffixes, instead = row["suffixes"], row["instead"]
        assert isinstance(suffixes, list)  # noqa: S101 - the table's shape
        assert isinstance(instead, dict)  # noqa: S101 - as above
        words = [
            f"{number}{suffix if suffix in suffixes else instead.get(suffix, '')}{'+PTX' if ptx and row['ptx'] else ''}"
            for number, suffix, ptx in parsed
        ]
        found[str(row["variable"])] = str(row["separator"]).join(dict.fromkeys(words))
    return found


def respelled(architectures: Sequence[str]) -> list[str]:
    """In words, each architecture that a tool does not know as it was given: `PyTorch is told 12.0a for 12.0f`."""
    from crossgrade.knowledge import table

    said = []
    for row in table("build_architecture_lists"):
        variable, separator = str(row["variable"]), str(row["separator"])
        for each in architectures:
            told = spelled([each])[variable].split(separator)[0]
            if told != each:
                said.append(f"{row['of']} is told {told} for {each}")
    return said


def _parsed(architecture: str) -> tuple[str, str, bool]:
    found = _ARCHITECTURE.fullmatch(architecture)
    if not found:
        raise TaskError(
            f"{architecture!r} is no GPU architecture", remedy='Write it as PyTorch does: "12.0", "12.0a", "9.0+PTX".'
        )
    return found["number"], found["suffix"], bool(found["ptx"])
