"""`bench history` and `bench compare`: what earlier launches have measured. Both only read."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from crossgrade.commands.common import existing_store, people, request_from
from crossgrade.errors import CrossgradeError, ExitCode, WrongOptionsError
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line
from crossgrade.store.layout import Store

if TYPE_CHECKING:
    from crossgrade.bench.comparing import Compared
    from crossgrade.bench.drift import Drift
    from crossgrade.bench.history import History, StoredLaunch

Options = Mapping[str, Any]
SCHEMA = 1
MAIN = ("output_tokens_per_second", "ttft_median", "itl_median")


def bench_history(options: Options) -> int:
    """Show launches by run, of one generation or of all, with the drift between runs of the same generation."""
    from crossgrade.bench.drift import alike, drift_of
    from crossgrade.bench.history import read_history

    if len(options["of"]) > 1:
        raise WrongOptionsError("bench history is about one generation, or about all")
    store, metrics = existing_store(request_from(options, "bench")), _metrics(options)
    history = read_history(store)
    launches = _of(history, store, options["of"][0]) if options["of"] else list(history.launches)
    groups = alike(launches)
    drifts = {key: drift_of(group, metrics) for key, group in groups.items()}
    if options["json"]:
        value = {
            "schema": SCHEMA,
            "launches": [launch.to_json() for launch in launches],
            "drift": [{"manifest": key[0], **asdict(one)} for key, found in drifts.items() for one in found],
            "problems": list(history.problems),
        }
        sys.stdout.write(json.dumps(value) + "\n")
        return ExitCode.DONE
    terminal = Terminal(people(options))
    if not launches:
        terminal.write([Line("no launch is on record")])
    for key, group in groups.items():
        terminal.write(_group_lines(group, drifts[key], list(metrics)))
    terminal.write(_problem_lines(history))
    return ExitCode.DONE


def bench_compare(options: Options) -> int:
    """Compare two generations or runs by the gate's statistics. Raises UnlikeError for what is unlike."""
    from crossgrade.bench.comparing import compare_launches
    from crossgrade.bench.history import read_history
    from crossgrade.commands.bisecting import share

    if len(options["of"]) != 2:
        raise WrongOptionsError("bench compare needs two generations or runs", remedy="crossgrade bench compare 1 2")
    store, metrics = existing_store(request_from(options, "bench")), _metrics(options)
    loss = share(options["allowed_loss"])
    history = read_history(store)
    one, other = (_of(history, store, word) for word in options["of"])
    found = compare_launches(
        one, other, metrics, allowed_loss=0.05 if loss is None else loss, forced=bool(options["force"])
    )
    if options["json"]:
        value = {"schema": SCHEMA, "of": list(options["of"]), "compared": [_as_json(each) for each in found]}
        sys.stdout.write(json.dumps(value) + "\n")
        return ExitCode.DONE
    terminal = Terminal(people(options))
    for each in found:
        terminal.write(_compared_lines(each))
    terminal.write(_problem_lines(history))
    return ExitCode.DONE


def _metrics(options: Options) -> dict[str, bool]:
    """Name → whether more is better, of those that were asked for, else the main ones. Raises WrongOptionsError."""
    from crossgrade.gates.benchmark_rules import METRICS

    names = [name.strip() for name in options["metric"].split(",") if name.strip()] or list(MAIN)
    for name in names:
        if name not in METRICS:
            raise WrongOptionsError(f"there is no metric {name}", remedy=f"There are {', '.join(METRICS)}.")
    return {name: METRICS[name].higher_is_better for name in names}


def _of(history: History, store: Store, word: str) -> list[StoredLaunch]:
    """The launches of a generation (`2`) or of a run (`20261201T…`: its new side; `20261201T…:old`).

    Of a generation that is there, those of its present files. Raises CrossgradeError where none is on record, or where
    a generation is gone and its number was that of several.
    """
    if not word.isdecimal():
        run, _, side = word.partition(":")
        found = [one for one in history.launches if one.run == run and one.side == (side or "new")]
        return _some(found, f"run {run}")
    number = int(word)
    found = [one for one in history.launches if one.generation == number]
    if number in store.numbers():
        manifest = store.generation(number).manifest
        found = [one for one in found if one.manifest == manifest]
    elif len({one.manifest for one in found}) > 1:
        runs = ", ".join(dict.fromkeys(one.run for one in found))
        raise CrossgradeError(
            f"several generations were called {number}, and all are gone", remedy=f"Name a run: {runs}."
        )
    return _some(found, f"generation {number}")


def _some(found: list[StoredLaunch], what: str) -> list[StoredLaunch]:
    if not found:
        raise CrossgradeError(f"no launch of {what} is on record", remedy="`crossgrade bench history` lists all.")
    return found


# ---- text


def _group_lines(group: Sequence[StoredLaunch], drifts: Iterable[Drift], metrics: Sequence[str]) -> Iterator[Line]:
    first = group[0]
    name = "an unknown generation" if first.generation is None else f"generation {first.generation}"
    yield Line(f"{name} ({first.manifest[:8]}), {_load(first.asked)}, {_machine(first)}", "heading")
    told = {(one.run, one.metric): one for one in drifts}
    yield Line(
        f"  {'when':<16} {'run':<22} {'launches':>8}  " + "  ".join(f"{_title(name):>22}" for name in metrics), "faint"
    )
    runs: dict[str, list[StoredLaunch]] = {}
    for launch in group:
        runs.setdefault(launch.run, []).append(launch)
    for run, launches in runs.items():
        good = [launch for launch in launches if launch.counts]
        left = f" ({len(launches) - len(good)} void or failed)" if len(good) < len(launches) else ""
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(launches[0].started_at))
        cells = [_cell([one.metrics[name] for one in good if name in one.metrics], name) for name in metrics]
        slower = [found for name in metrics if (found := told.get((run, name))) is not None and found.flagged]
        row = f"  {when:<16} {run:<22} {len(good):>8}  " + "  ".join(f"{cell:>22}" for cell in cells) + left
        yield Line(row, "warning" if slower else "")
        for one in slower:
            bound = 0.0 if one.bound is None else 100 * one.bound
            yield Line(
                f"      drift: {_title(one.metric)} is {one.ratio:.3f} of what {one.earlier_runs} earlier runs had; "
                f"chance explains {bound:.1f}%",
                "warning",
            )


def _compared_lines(compared: Compared) -> Iterator[Line]:
    from crossgrade.gates.benchmark_targets import describe

    one, other = compared.launches
    how = f"{one} pairs" if compared.paired else f"{one} and {other} launches, not in pairs"
    yield Line(f"{_load(compared.asked)}: {how}", "heading")
    for note in compared.notes:
        yield Line(f"  {note}", "warning")
    for metric, result in compared.results.items():
        style = {"passed": "ok", "failed": "failed"}.get(result.outcome, "warning")
        yield Line(f"  {result.outcome}: {describe(metric, result)}", style)
    if not compared.results:
        yield Line("  no launch has these figures", "warning")


def _problem_lines(history: History) -> Iterator[Line]:
    return (Line(problem, "warning") for problem in history.problems)


def _load(asked: Mapping[str, Any]) -> str:
    name = f"{asked['name']}: " if asked.get("name") else ""
    rate = f"{asked['rate']:g} requests/s" if asked.get("rate") else f"concurrency {asked.get('concurrency', '?')}"
    return f"{name}{rate}, {asked.get('requests', '?')} requests of {asked.get('max_tokens', '?')} tokens"


def _machine(launch: StoredLaunch) -> str:
    if not launch.host:
        return "on an unknown machine"
    gpus = [str(gpu.get("name", "GPU")) for gpu in launch.machine.get("gpus") or ()]
    shown = ", ".join(f"{gpus.count(gpu)} x {gpu}" for gpu in dict.fromkeys(gpus)) or "no GPU"
    return f"on {launch.machine.get('hostname', '?')} ({shown})"


def _title(name: str) -> str:
    from crossgrade.gates.benchmark_rules import METRICS

    return f"{name.replace('_per_second', '/s')}" + (" ms" if METRICS[name].scale != 1 else "")


def _cell(values: Sequence[float], name: str) -> str:
    """`89.5 (88.1-90.2)`: the median, the least and the greatest."""
    from crossgrade.bench.statistics import median
    from crossgrade.gates.benchmark_rules import METRICS

    if not values:
        return "-"
    scaled = [value * METRICS[name].scale for value in values]
    return f"{median(scaled):.4g} ({min(scaled):.4g}-{max(scaled):.4g})"


def _as_json(compared: Compared) -> dict[str, Any]:
    return {
        "profile": compared.profile,
        "asked": dict(compared.asked),
        "launches": list(compared.launches),
        "paired": compared.paired,
        "notes": list(compared.notes),
        "results": {name: result.to_json() for name, result in compared.results.items()},
    }
