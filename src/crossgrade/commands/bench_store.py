"""`bench store`: what the store does with a large tree, beside peers doing the like on the same tree, in one run.

Adoption is a real `crossgrade upgrade` with a playbook that has one task, `venv_backup`; all of ours are whole
processes, from start to exit. Nothing is judged: figures and ratios are printed, with what they were measured on.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossgrade.commands.bench_tree import CACHE, made_tree
from crossgrade.commands.benchmarking import machine_name
from crossgrade.commands.measuring import (
    Measure,
    can_drop_caches,
    filesystem_of,
    measure,
    median_of,
    program,
    quietly,
)
from crossgrade.errors import CrossgradeError, ExitCode, WrongOptionsError
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line
from crossgrade.store.scanning import count_files

_REPEATS = 5
_ROUNDS = 3
_CORES = str(os.cpu_count() or 1)
_AT_ONCE = (os.cpu_count() or 1) + 6  # as many as `store/hashing.py` has for small files on a disk
_ADOPT = """- hosts: localhost
  gather_facts: false
  tasks:
    - venv_backup: {{path: {path}}}
"""
_ACTIVATE = """- hosts: localhost
  gather_facts: false
  tasks:
    - python_env: {requirements: []}
      register: candidate
    - activate: {generation: "{{ candidate.generation }}"}
"""


@dataclass
class _Bench:
    """`work` is the folder of this run, on the filesystem of the tree; it is removed afterwards."""

    tree: Path
    work: Path
    terminal: Terminal
    base: float = 0.0
    rows: list[Measure] = field(default_factory=list)

    @property
    def env(self) -> Path:
        return self.work / "env"

    @property
    def root(self) -> Path:
        return self.work / "root"

    def say(self, text: str) -> None:
        self.terminal.write([Line(text)])

    def show(self, row: Measure) -> Measure:
        self.say(row.line(self.base))
        self.rows.append(row)
        return row

    def ours(self, *arguments: str) -> list[str]:
        return [program("crossgrade"), *arguments, "--root", str(self.root), "--playbook", str(self.work / "adopt.yml")]


def bench_store(options: Mapping[str, Any]) -> int:
    """Raises CrossgradeError when a program fails, WrongOptionsError for options that make no sense."""
    gigabytes = _gigabytes(options["gigabytes"])
    if shutil.which("zstd") is None:
        raise CrossgradeError("zstd is not installed here", remedy="Install it: it is a peer of `crossgrade export`.")
    terminal = Terminal(sys.stdout)
    folder = Path(options["root"] or CACHE).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if options["tree"]:
        tree = Path(options["tree"]).expanduser().absolute()
        if not (tree / "pyvenv.cfg").is_file():
            raise WrongOptionsError(f"--tree {tree} is not a venv: it has no pyvenv.cfg")
    else:
        tree = made_tree(folder, gigabytes, lambda text: terminal.write([Line(text, "faint")]))
    with tempfile.TemporaryDirectory(prefix="work-", dir=folder) as work:
        bench = _Bench(tree, Path(work), terminal)
        _measure_all(bench)
    return ExitCode.DONE


def _gigabytes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value <= 100:
        raise WrongOptionsError(f"--gigabytes needs a number up to 100, not {text!r}")
    return value


def _measure_all(bench: _Bench) -> None:
    files, size = count_files(bench.tree)
    bench.say(f"machine: {machine_name()}; load before: {os.getloadavg()[0]:.1f}")
    bench.say(f"tree: {bench.tree}: {files:,} files, {size / 1e9:.2f} GB, on {filesystem_of(bench.work)}")
    dropped = "dropped before each measure marked cold" if can_drop_caches() else "not dropped: that needs root"
    bench.say(f"page cache: {dropped}; ours and theirs are whole processes")
    bench.say(f"{'(ratio: to the fastest full hash pass, cold)':<52}{'time':>11} {'ratio':>6} {'memory':>10}")
    copy = measure("cp -a", ["cp", "-a", str(bench.tree), str(bench.env)])
    (bench.work / "adopt.yml").write_text(_ADOPT.format(path=bench.env), encoding="utf-8")
    (bench.work / "activate.yml").write_text(_ACTIVATE, encoding="utf-8")
    quietly(bench.ours("plan"))  # Python keeps the bytecode of what this imports
    hashed, adopted = _adopt(bench, cold=True)
    bench.show(copy)
    verified = _verify(bench)
    packed = _archive(bench)
    rollback = _rollback(bench)
    _put_back(bench)
    hashed_warm, adopted_warm = _adopt(bench, cold=False)
    _put_back(bench)
    sha256 = _peers(bench)
    bench.say("")
    for words, value in (
        ("adopt + manifest / fastest full hash pass, cold", adopted.seconds / hashed.seconds),
        ("adopt + manifest / fastest full hash pass, warm", adopted_warm.seconds / hashed_warm.seconds),
        ("cp -a and sha256sum / adopt + manifest, cold", (copy.seconds + sha256.seconds) / adopted.seconds),
        ("export / tar | zstd at the same level, cold", packed[1].seconds / packed[0].seconds),
    ):
        bench.say(f"{words:<52}{value:>9.2f} times")
    bench.say(f"{'cp -a, then sha256sum, cold':<52}{copy.seconds + sha256.seconds:>9.2f} s")
    bench.say(f"{'verify, nothing changed, warm':<52}{verified.seconds:>9.2f} s")
    bench.say(f"{'rollback, warm':<52}{rollback.seconds:>9.2f} s")
    bench.say(f"{'export, peak memory':<52}{packed[1].peak / 1e6:>9.0f} MB")


# ---- peers


def _hash_passes(root: Path) -> list[tuple[str, list[Sequence[str]]]]:
    """Full passes over all bytes with BLAKE3, on all cores: the fastest of them is what we are held against."""
    script = Path(__file__).with_name("hash_pass.py")
    passes: list[tuple[str, list[Sequence[str]]]] = [
        (f"blake3, {_CORES} threads (hash_pass.py)", [[sys.executable, str(script), str(root)]])
    ]
    b3sum = ["b3sum", "--num-threads", "1"]
    if shutil.which("b3sum"):
        # more of them than cores: a disk can serve several at once
        passes += [
            (f"b3sum, xargs -P {count}", [_find(root), ["xargs", "-0", "-n", "200", "-P", count, *b3sum]])
            for count in (_CORES, str(_AT_ONCE))
        ]
    return passes


def _find(root: Path) -> list[str]:
    return ["find", str(root), "-type", "f", "-print0"]


def _peers(bench: _Bench) -> Measure:
    """The measure of sha256sum, beside other peers. They come last: hard links change the ctime of every file."""
    sha256 = ["xargs", "-0", "-n", "500", "-P", _CORES, "sha256sum"]
    hashed = bench.show(measure(f"sha256sum, xargs -P {_CORES}", _find(bench.env), sha256))
    bench.show(measure("tar | cat > /dev/null", _tar(bench.env), ["cat"]))
    other = bench.work / "other"
    if shutil.which("rsync"):
        bench.show(measure("rsync -a", ["rsync", "-a", f"{bench.env}/", str(other)]))
        shutil.rmtree(other)
    bench.show(measure("cp -al (hard links)", ["cp", "-al", str(bench.env), str(other)]))
    shutil.rmtree(other)
    return hashed


def _tar(root: Path) -> list[str]:
    return ["tar", "-cf", "-", "-C", str(root), "."]


# ---- ours


def _adopt(bench: _Bench, *, cold: bool) -> tuple[Measure, Measure]:
    """The fastest full hash pass and adoption, in turns, so that both meet the same machine; medians.

    Leaves the tree adopted. Warm is what fits in the page cache: there the disk is no excuse.
    """
    passes = _hash_passes(bench.env)
    measures: dict[str, list[Measure]] = {label: [] for label, _ in passes}
    adoptions: list[Measure] = []
    if not cold:
        quietly(*passes[0][1])
    for _ in range(_ROUNDS):
        if adoptions:
            _put_back(bench)
        for label, stages in passes:
            measures[label].append(measure(label, *stages, cold=cold))
        adoptions.append(measure("crossgrade upgrade: adopt + manifest", bench.ours("upgrade", "--yes"), cold=cold))
    medians = [median_of(measures[label]) for label, _ in passes]
    fastest = min(medians, key=lambda row: row.seconds)
    bench.base = bench.base or fastest.seconds
    for row in medians:
        bench.show(row)
    return fastest, bench.show(median_of(adoptions))


def _verify(bench: _Bench) -> Measure:
    label = "crossgrade verify, nothing changed"
    quietly(bench.ours("verify"))
    warm = [measure(label, bench.ours("verify"), cold=False) for _ in range(_REPEATS)]
    verified = bench.show(median_of(warm))
    bench.show(measure(label, bench.ours("verify")))
    bench.show(measure("crossgrade verify --full", bench.ours("verify", "--full")))
    return verified


def _archive(bench: _Bench) -> tuple[Measure, Measure]:
    """`tar | zstd` and our archive with its manifest, which also checks every byte that it reads; level 1 both."""
    packed = bench.work / "peer.tar.zst"
    venv = bench.root / "store" / "generations" / "1" / "venv"
    peer = bench.show(
        measure(f"tar | zstd -1 -T{_CORES}", _tar(venv), ["zstd", "-1", f"-T{_CORES}", "-c"], output=packed)
    )
    size = packed.stat().st_size
    packed.unlink()
    ours = bench.work / "ours.tar.zst"
    export = bench.show(
        measure("crossgrade export --level 1", bench.ours("export", "1", "--level", "1", "--to", str(ours)))
    )
    bench.say(f"    {size / 1e6:,.0f} MB by tar | zstd, {ours.stat().st_size / 1e6:,.0f} MB by export")
    ours.unlink()
    return peer, export


def _rollback(bench: _Bench) -> Measure:
    """From a candidate back to the large tree, several times."""
    activate = [*bench.ours("upgrade", "--yes")[:-1], str(bench.work / "activate.yml")]
    quietly(activate)
    label = "crossgrade rollback"
    warm = []
    for _ in range(_REPEATS):
        warm.append(measure(label, bench.ours("rollback"), cold=False))
        quietly(bench.ours("rollback", "--to", "2"))
    rollback = bench.show(median_of(warm))
    bench.show(measure(label, bench.ours("rollback")))
    return rollback


def _put_back(bench: _Bench) -> None:
    """Undo the adoption by hand, so that it can be measured again."""
    bench.env.unlink()
    (bench.root / "store" / "generations" / "1" / "venv").rename(bench.env)
    shutil.rmtree(bench.root)
