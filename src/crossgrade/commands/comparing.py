"""`diff`: what differs between two generations."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from crossgrade.commands.common import existing_store, generation_number, guarded, people, request_from
from crossgrade.engine.request import Request
from crossgrade.errors import ExitCode
from crossgrade.knowledge import table
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line
from crossgrade.store import difference
from crossgrade.store.difference import Difference, Files, Pair
from crossgrade.store.layout import Store
from crossgrade.store.manifest import Manifest, recorded_manifest

Options = Mapping[str, Any]
DIFFERENT = 2
_SHOWN_FILES = 10


def diff_command(options: Options) -> int:
    """Exit code 0, or with --detailed-exitcode 2 when something differs."""
    return guarded(lambda: _diff(options, request_from(options, "diff")))


def _diff(options: Options, request: Request) -> int:
    store = existing_store(request)
    found = compare_generations(store, *(generation_number(options, name) for name in ("one", "other")))
    terminal = Terminal(people(options))
    if options["json"]:
        sys.stdout.write(json.dumps(found.to_json(), indent=2) + "\n")
    else:
        terminal.write(_lines(found, all_files=options["verbose"] > 0))
    return DIFFERENT if options["detailed_exitcode"] and not found.identical else ExitCode.DONE


def compare_generations(store: Store, one: int, other: int) -> Difference:
    """Raises StoreError when one of them is not there, damaged, or not complete."""
    before, after = store.generation(one), store.generation(other)
    manifests = [recorded_manifest(store, each) for each in (one, other)]
    files = difference.file_difference(*manifests)
    return Difference(
        one,
        other,
        difference.dist_pairs(before, after),
        difference.setting_pairs(before, after),
        _libraries(store, (one, manifests[0]), (other, manifests[1]), files),
        difference.gate_pairs(store.verdicts(one), store.verdicts(other)),
        files,
        difference.server_pairs(
            store.server_info(one), store.server_info(other), (str(row["name"]) for row in table("server_settings"))
        ),
    )


def _libraries(store: Store, one: tuple[int, Manifest], other: tuple[int, Manifest], files: Files) -> tuple[Pair, ...]:
    """Native files that differ: only those are opened, and of each only its headers and dynamic section are read."""
    names = [path for path in (*files.added, *files.removed, *files.changed) if _is_native(path)]
    told = [
        {path: _native(store.venv(number_) / path) for path in names if path in manifest.entries}
        for number_, manifest in (one, other)
    ]
    return difference.pairs(*told)


def _is_native(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(".so") or ".so." in name


def _native(path: Path) -> str:
    from crossgrade.inspect.elf import FileSource, UnreadableElfError, parse_elf

    try:
        with FileSource(path) as source:
            elf = parse_elf(source)
    except (UnreadableElfError, OSError) as error:
        return f"not readable: {error}"
    needs = ", ".join(sorted(elf.needed)) or "nothing"
    return f"{elf.soname or path.name}, needs {needs}"


def _lines(found: Difference, *, all_files: bool) -> Iterator[Line]:
    if found.identical and not found.gates and not found.server:
        yield Line(f"generations {found.one} and {found.other} are the same, but for the places that they name", "ok")
        return
    yield from _section("dists", found.dists)
    yield from _section("settings", found.settings)
    yield from _section("native libraries", found.libraries)
    yield from _section("gates", found.gates)
    yield from _section("what the servers say of themselves", found.server)
    files = found.files
    before, after = files.sizes
    yield Line(
        f"files: {len(files.added):,} added, {len(files.removed):,} removed, {len(files.changed):,} changed; "
        f"{before / 1e6:,.1f} MB -> {after / 1e6:,.1f} MB",
        "heading",
    )
    for mark, names in (("+", files.added), ("-", files.removed), ("~", files.changed)):
        shown = names if all_files else names[:_SHOWN_FILES]
        yield from (Line(f"  {mark} {name}", "changed") for name in shown)
        if len(shown) < len(names):
            yield Line(f"  {mark} and {len(names) - len(shown):,} more: -v shows them", "faint")


def _section(title: str, pairs: Iterable[Pair]) -> Iterator[Line]:
    listed = list(pairs)
    if listed:
        yield Line(f"{title}:", "heading")
    for pair in listed:
        if pair.before is None:
            yield Line(f"  + {pair.name} {pair.after}", "changed")
        elif pair.after is None:
            yield Line(f"  - {pair.name} {pair.before}", "changed")
        else:
            yield Line(f"  ~ {pair.name} {pair.before} -> {pair.after}", "changed")
