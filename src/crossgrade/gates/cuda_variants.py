"""Which of its libraries a dist opens that brings one for each CUDA release. Part of the CUDA gate. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from crossgrade.gates.verdict import Finding, joined
from crossgrade.inspect.cuda_consistency import CudaFacts
from crossgrade.inspect.dists import normalize_name
from crossgrade.jsontype import JSON
from crossgrade.knowledge import Row, table

Release = tuple[int, int]


def judge_variants(facts: CudaFacts, environment: Mapping[str, str]) -> Iterator[Finding]:
    """A warning for each dist of `knowledge/library_variants.yml` that opens none of its libraries, or a wrong one.

    ``environment`` are the variables of the server: some name the release that is opened. What torch is built for is
    not known, or not CUDA: nothing is said.
    """
    torch = facts.torch
    numbers = re.match(r"(\d+)\.(\d+)", torch.cuda or "") if torch is not None else None
    if torch is None or numbers is None:
        return
    wanted = int(numbers[1]), int(numbers[2])
    for row in table("library_variants"):
        owners = dict.fromkeys(file.dist for file in facts.files if _name(file.dist) == row["dist"])
        for owner in owners:
            paths = [file.path for file in facts.files if file.dist == owner]
            releases = sorted({found for path in paths if (found := _release(path, row)) is not None})
            if releases:
                yield from _judge(owner, releases, wanted, torch.dist, row, environment)


def _judge(
    owner: str, releases: list[Release], wanted: Release, torch: str, row: Row, environment: Mapping[str, str]
) -> Iterator[Finding]:
    variable = str(row["variable"])
    named = environment.get(variable, "")
    has = joined(map(_words, releases), 12)
    evidence: dict[str, JSON] = {"has": [_words(each) for each in releases], "wanted": _words(wanted), variable: named}
    if named:
        taken = (int(named[:-1]), int(named[-1])) if re.fullmatch(r"\d{3}", named) else None
        if taken not in releases:
            message = f"{variable}={named} names a library that it does not have (it has {has}). Unset it"
            yield Finding("warning", owner, message, evidence)
        elif taken[0] != wanted[0]:
            message = (
                f"{variable}={named} makes it open its library for CUDA {_words(taken)}, and {torch} is built for "
            )
            yield Finding("warning", owner, f"{message}CUDA {_words(wanted)}. Unset it", evidence)
        return
    near = [release for release in releases if release[0] == wanted[0]]
    if wanted in releases or (near and not _is_older(owner, str(row["nearest_since"]))):
        return
    message = (
        f"has no library for CUDA {_words(wanted)}, which {torch} is built for (it has {has}): it cannot be used. "
    )
    cure = f"Install {row['dist']} {row['nearest_since']} or newer"
    if near:
        cure += f", or set {variable}={near[-1][0]}{near[-1][1]}"
    yield Finding("warning", owner, message + cure, evidence)


def _release(path: str, row: Row) -> Release | None:
    match = re.fullmatch(str(row["library"]), path.rpartition("/")[2])
    return (int(match[1]), int(match[2])) if match else None


def _name(dist: str) -> str:
    return normalize_name(dist.partition(" ")[0])


def _words(release: Release) -> str:
    return f"{release[0]}.{release[1]}"


def _is_older(dist: str, than: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(dist.partition(" ")[2]) < Version(than)
    except InvalidVersion:
        return False
