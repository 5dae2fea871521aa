"""Findings on what native modules were compiled against, next to what is installed: numpy, torch, the limited API."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from crossgrade.gates.consistency_installation import printable
from crossgrade.gates.verdict import Finding, Level, counted, joined
from crossgrade.inspect.builds import Build, made_for
from crossgrade.inspect.dists import InstalledDist
from crossgrade.inspect.mangled import demangled
from crossgrade.jsontype import JSON
from crossgrade.knowledge import table

_SHOWN = 3
_RELEASE = re.compile(r"v?(\d{1,6})\.(\d{1,6})")


def judge_builds(dists: Sequence[InstalledDist], builds: Sequence[Build]) -> Iterator[tuple[str, Finding]]:
    """The name of the dist and a finding, for each dist with modules that were compiled against something else."""
    by_dist: dict[InstalledDist, list[Build]] = {}
    for build in builds:
        by_dist.setdefault(build.dist, []).append(build)
    for dist, theirs in by_dist.items():
        found = [*_numpy(dists, dist, theirs), *_torch(dists, dist, theirs), *_limited_api(theirs)]
        yield from ((dist.name, finding) for finding in found)


def _numpy(dists: Sequence[InstalledDist], dist: InstalledDist, builds: Sequence[Build]) -> Iterator[Finding]:
    """A build for numpy 1 is refused by numpy 2, and one for a newer C-API by an older numpy, when it is imported."""
    numpy = _only(dists, "numpy")
    release = _release(numpy.version) if numpy else None
    if numpy is None or release is None or dist.name == "numpy":
        return
    using = [build for build in builds if build.numpy]
    old = [build for build in using if build.numpy and build.numpy.major < 2 <= release[0]]
    if old:
        words = f"compiled against numpy 1, and {numpy} is installed"
        remedy = f"Install a release of {dist.name} that was built for numpy 2, or numpy<2"
        yield from _numpy_findings(dist, numpy, old, words, remedy)
    asked = [build.numpy.oldest for build in using if build.numpy and build.numpy.oldest]
    newest = max(asked, default=release)
    if newest > release:
        new = [build for build in using if build.numpy and (build.numpy.oldest or release) > release]
        text = ".".join(map(str, newest))
        words = f"compiled for numpy {text} or newer, and {numpy} is installed"
        yield from _numpy_findings(dist, numpy, new, words, f"Install numpy>={text}, or an older {dist.name}")


def _numpy_findings(
    dist: InstalledDist, numpy: InstalledDist, builds: Sequence[Build], words: str, remedy: str
) -> Iterator[Finding]:
    """Modules cannot be imported; a library is used by what can do without numpy, as torch can."""
    for modules, then in ((True, "cannot be imported"), (False, "cannot use numpy")):
        chosen = [build for build in builds if build.module == modules]
        if chosen:
            were = "was" if len(chosen) == 1 else "were"
            message = f"{_named(chosen)} {were} {words}: {'it' if len(chosen) == 1 else 'they'} {then}. {remedy}"
            level: Level = "failure" if modules else "warning"
            evidence: dict[str, JSON] = {**_evidence(dist, chosen), "numpy": numpy.version}
            yield Finding(level, str(dist), message, evidence, "numpy-mismatch")


def _torch(dists: Sequence[InstalledDist], dist: InstalledDist, builds: Sequence[Build]) -> Iterator[Finding]:
    """Modules of one dist were compiled together: where some lack symbols of torch, the others fit it no better.

    Whatever has all its symbols is loaded, and registers its operators with a torch of another layout.
    """
    torch = _only(dists, "torch")
    release = _release(torch.version) if torch else None
    if torch is None or release is None:
        return
    using = [build for build in builds if build.uses_torch and _is_meant_for(build.path, release)]
    lacking = [build for build in using if build.lacks]
    if not lacking:
        return
    others = [build for build in using if not build.lacks]
    symbols = sorted({name for build in lacking for name in build.lacks})
    against, telling = _compiled_against(symbols, release)
    message = (
        f"was compiled against {against or 'another torch'}: {_named(lacking)} "
        f"{'needs' if len(lacking) == 1 else 'need'} {demangled(telling)}, which {torch} does not have"
    )
    if others:
        message += f"; {_named(others)} {'loads' if len(others) == 1 else 'load'} all the same, and may then abort"
    else:
        message += "; it cannot be loaded"
    message += f". Install the build of {dist.name} for {torch}, or the torch that it was built for"
    evidence: dict[str, JSON] = {
        **_evidence(dist, lacking),
        "torch": torch.version,
        "lacks": list(symbols),
        "compiled_against": against,
        "may_abort": [printable(build.path) for build in others],
    }
    yield Finding("failure" if others else "warning", str(dist), message, evidence, "torch-mismatch")


def _is_meant_for(path: str, release: tuple[int, int]) -> bool:
    """Whether a file is for this torch, as far as its name says: packages bring builds for several."""
    stated = made_for(path)
    return not stated or stated == f"{release[0]}.{release[1]}"


def _compiled_against(symbols: Sequence[str], release: tuple[int, int]) -> tuple[str, str]:
    """``torch 2.9.1 or newer``, as far as that is known, and the symbol that tells it; else the first symbol."""
    known: Mapping[str, Mapping[str, JSON]] = {str(row["symbol"]): row for row in table("torch_symbols")}
    newer: list[tuple[tuple[int, int], str, str]] = []
    older: list[tuple[tuple[int, int], str, str]] = []
    for symbol in symbols:
        row = known.get(symbol)
        listed = row.get("has") if row else None
        for version in listed if isinstance(listed, list) else []:
            if number := _release(str(version)):
                (newer if number > release else older).append((number, str(version), symbol))
    first: dict[str, tuple[tuple[int, int], str]] = {}
    for number, version, symbol in sorted(newer):
        first.setdefault(symbol, (number, version))
    if first:
        symbol = max(first, key=lambda name: first[name])
        return f"torch {first[symbol][1]} or newer", symbol
    if older:
        last: dict[str, tuple[tuple[int, int], str]] = {}
        for number, version, symbol in sorted(older):
            last[symbol] = (number, version)
        symbol = min(last, key=lambda name: last[name])
        return f"torch {last[symbol][1]} or older", symbol
    return "", symbols[0]


def _limited_api(builds: Sequence[Build]) -> Iterator[Finding]:
    for build in builds:
        if not build.beyond or build.promised is None:
            continue
        promised = f"CPython {build.promised[0]}.{build.promised[1]}"
        names = [f"{item.name} ({_since(item.since)})" for item in build.beyond]
        message = (
            f"{printable(build.path)} is for the limited API of {promised} (abi3), and uses {joined(names, _SHOWN)}: "
            f"another release of Python may break it. Install a build of {build.dist.name} for this Python where "
            f"there is one"
        )
        evidence: dict[str, JSON] = {
            **_evidence(build.dist, [build]),
            "promised": promised,
            "names": [item.name for item in build.beyond],
        }
        yield Finding("warning", str(build.dist), message, evidence, "limited-api")


def _since(version: tuple[int, int] | None) -> str:
    return f"in it since {version[0]}.{version[1]}" if version else "never in it"


def _only(dists: Sequence[InstalledDist], name: str) -> InstalledDist | None:
    """The dist of that name; None where there is none, or where an interrupted installer left two."""
    found = [dist for dist in dists if dist.name == name]
    return found[0] if len(found) == 1 else None


def _release(version: str) -> tuple[int, int] | None:
    match = _RELEASE.match(version)
    return (int(match[1]), int(match[2])) if match else None


def _named(builds: Sequence[Build]) -> str:
    what = "module" if all(build.module for build in builds) else "native file"
    return f"{counted(len(builds), what)} ({joined((printable(build.path) for build in builds), _SHOWN)})"


def _evidence(dist: InstalledDist, builds: Sequence[Build]) -> dict[str, JSON]:
    return {"dist": str(dist), "files": [printable(build.path) for build in builds]}
