"""Which CUDA major release each of NVIDIA's dists is for, from names alone: those of dists and of the files in RECORD.

No native file is opened, so it is quick, and it says nothing of what others were built against: that is
`crossgrade.inspect.cuda_consistency`'s to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossgrade.inspect.cuda_consistency import TorchBuild, stated_major, torch_build
from crossgrade.inspect.cuda_libraries import cuda_library
from crossgrade.inspect.dists import InstalledDist
from crossgrade.inspect.installed_files import Recorded

# Wheels of CUDA 13 and later lie in nvidia/cu13; read in nvidia-cuda-runtime 13.0.96 and its siblings
_FOLDER = re.compile(r"nvidia/cu(\d{2})/")


@dataclass(frozen=True)
class CudaMajors:
    """`dists` maps a major release to NVIDIA's dists with libraries of it, in order of name.

    `torch` is what torch says of itself, None where there is none.
    """

    dists: Mapping[int, tuple[InstalledDist, ...]]
    torch: TorchBuild | None

    @property
    def torch_major(self) -> int | None:
        """The release that torch is built for; None without torch, without CUDA, and where it is not known."""
        major = self.torch.cuda.partition(".")[0] if self.torch and self.torch.cuda else ""
        return int(major) if major.isdecimal() and len(major) < 4 else None

    @property
    def strangers(self) -> Mapping[int, tuple[InstalledDist, ...]]:
        """The dists that are for another release than torch; without one, all of them where there are several."""
        if self.torch_major is not None:
            return {major: dists for major, dists in self.dists.items() if major != self.torch_major}
        return self.dists if len(self.dists) > 1 else {}


def read_majors(site: Path, records: Sequence[Recorded]) -> CudaMajors:
    """Of the dists whose records these are. ``torch/version.py`` is the one file that is read."""
    found: dict[int, list[InstalledDist]] = {}
    for recorded in records:
        major = _major(recorded) if recorded.dist.name.startswith("nvidia-") else None
        if major is not None:
            found.setdefault(major, []).append(recorded.dist)
    dists = [recorded.dist for recorded in records]
    return CudaMajors({major: tuple(found[major]) for major in sorted(found)}, torch_build(site, dists))


def _major(recorded: Recorded) -> int | None:
    """By the dist's name, else by the folder or the sonames of its libraries; None where they do not agree.

    A dist without one of the libraries in the table counts for none: NVIDIA's own packages bring variants of others for
    two releases side by side (nvidia-cutlass-dsl-libs-cu12 and -cu13).
    """
    named = (path for path in recorded.files if ".so" in path)
    libraries = {path: library for path in named if (library := cuda_library(path.rpartition("/")[2]))}
    if not libraries:
        return None
    stated = stated_major(recorded.dist.name)
    if stated is not None:
        return stated
    majors = {library.cuda for library in libraries.values() if library.cuda is not None}
    majors |= {int(match[1]) for path in libraries if (match := _FOLDER.match(path))}
    return majors.pop() if len(majors) == 1 else None
