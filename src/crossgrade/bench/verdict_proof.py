"""How often the verdict is right: real launches of servers that are slower by a known share (`planted_server`).

Each repetition is a whole benchmark, as the `benchmark` module makes it: pairs of launches in ABBA order, two load
profiles, two metrics of each, looks as planned. The allowed loss is 5% everywhere.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from crossgrade.bench import planted_server
from crossgrade.bench.load_profile import LoadProfile
from crossgrade.bench.paired import run_pairs
from crossgrade.bench.profiles import run_profiles
from crossgrade.bench.server_process import RunningServer, ServerSpec, launch
from crossgrade.bench.statistics import Decision, NonInferiority
from crossgrade.errors import TaskError
from crossgrade.gates.benchmark import decided
from crossgrade.gates.benchmark_rules import BenchmarkRules
from crossgrade.gates.benchmark_targets import judge_targets

ALLOWED = 0.05
TOKENS = 24
PROFILES = tuple(
    LoadProfile(
        name=f"concurrency-{streams}", concurrency=streams, requests=requests, warmup_requests=0, max_tokens=TOKENS
    )
    for streams, requests in ((1, 1), (8, 8))
)
RULES = BenchmarkRules({"output_tokens_per_second": ALLOWED, "ttft_median": ALLOWED}, maximum_pairs=8)
LOSSES = (0.02, 0.05, 0.10)
HEAD = (
    *("slow-down", "loss", "should be", "right", "wrong", "inconclusive", "void", "repetitions", "pairs (mean)"),
    "measured loss",
)
Class = Literal["right", "wrong", "inconclusive", "void"]


@dataclass(frozen=True)
class Planted:
    """A slow-down: where it shows (`planted_server.KINDS`), and the share of the speed that is lost (0.05: 5%)."""

    kind: str
    loss: float

    @property
    def allowed(self) -> bool:
        """Whether the verdict should be `passed`. A loss of exactly the allowed one should not."""
        return self.loss < ALLOWED


CASES = (Planted("constant", 0.0), *(Planted(kind, loss) for loss in LOSSES for kind in planted_server.KINDS))


@dataclass(frozen=True)
class Repetition:
    """One benchmark of one case: what was decided, after how many pairs, and what share of the machine others took.

    `measured` has the loss that was measured of each target (a share; below 0 it was faster), by its title.
    """

    kind: str
    loss: float
    outcome: Decision | Literal["void"]
    pairs: int
    others: float | None = None
    measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def judged(self) -> Class:
        if self.outcome in ("inconclusive", "void"):
            return "void" if self.outcome == "void" else "inconclusive"
        return "right" if (self.outcome == "passed") == Planted(self.kind, self.loss).allowed else "wrong"


def repeat(planted: Planted, folder: Path) -> Repetition:
    """Benchmark a server with this slow-down against one without. `folder` takes the servers' logs."""

    def command(loss: float) -> tuple[str, ...]:
        return sys.executable, "-I", str(planted_server.__file__), "{port}", planted.kind, str(loss)

    @contextmanager
    def started(side: str, loss: float) -> Iterator[RunningServer]:
        with launch(ServerSpec(command(loss), stop_grace=2.0), folder / f"{side}.log") as server:
            yield server

    samples = run_pairs(
        lambda: started("old", 0.0),
        lambda: started("new", planted.loss),
        lambda server: run_profiles(server.base_url, PROFILES),
        enough=lambda so_far: decided(so_far, RULES),
        maximum_pairs=RULES.maximum_pairs,
        maximum_void=RULES.maximum_void,
    )
    shares = [one.others for one in (*samples.old, *samples.new) if one.others is not None]
    others = round(sum(shares) / len(shares), 3) if shares else None
    if not samples.count:
        return Repetition(planted.kind, planted.loss, "void", 0, others)
    judged = judge_targets(samples, RULES, None)
    outcomes = {one.outcome for one in judged}
    outcome: Decision = "failed" if "failed" in outcomes else "passed" if outcomes == {"passed"} else "inconclusive"
    measured = {one.title: _loss(one.result) for one in judged if isinstance(one.result, NonInferiority)}
    return Repetition(planted.kind, planted.loss, outcome, samples.count, others, measured)


def _loss(result: NonInferiority) -> float:
    return round(1 - (result.mean_ratio if result.higher_is_better else 1 / result.mean_ratio), 5)


def prove(repetitions: int, folder: Path, record: Path | None, tell: Callable[[Repetition], None]) -> list[Repetition]:
    """Repeat every case so often; round by round, so that an interrupted proof has all of them about as often.

    What `record` (JSON lines) has already is not repeated.
    """
    done = read_repetitions(record) if record else []
    for number in range(repetitions):
        for planted in CASES:
            if sum((one.kind, one.loss) == (planted.kind, planted.loss) for one in done) > number:
                continue
            try:
                repetition = repeat(planted, folder)
            except TaskError:  # a port was taken, or the machine too busy for a start: told as void
                repetition = Repetition(planted.kind, planted.loss, "void", 0)
            done.append(repetition)
            if record:
                with record.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(asdict(repetition)) + "\n")
            tell(repetition)
    return done


def read_repetitions(record: Path) -> list[Repetition]:
    """Those on record; a line that was cut off is passed over."""
    found = []
    if record.exists():
        for line in record.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, TypeError):
                found.append(Repetition(**json.loads(line)))
    return found


def proof_table(repetitions: Iterable[Repetition]) -> list[Sequence[str]]:
    """Rows of the table, the first its head."""
    all_of_them = list(repetitions)
    rows: list[Sequence[str]] = [HEAD]
    for planted in CASES:
        of_case = [one for one in all_of_them if (one.kind, one.loss) == (planted.kind, planted.loss)]
        if not of_case:
            continue
        counts = [sum(one.judged == kind for one in of_case) for kind in ("right", "wrong", "inconclusive", "void")]
        should = "passed" if planted.allowed else "failed" if planted.loss > ALLOWED else "not passed"
        pairs = sum(one.pairs for one in of_case) / len(of_case)
        name = planted.kind if planted.loss else "none"
        loss = f"{100 * planted.loss:g}%"
        rows.append((name, loss, should, *map(str, counts), str(len(of_case)), f"{pairs:.1f}", _measured(of_case)))
    return rows


def _measured(repetitions: Sequence[Repetition]) -> str:
    """The loss of the target that lost most in the mean over all repetitions: what was there to be found."""
    titles = {title for one in repetitions for title in one.measured}
    losses = [[one.measured[title] for one in repetitions if title in one.measured] for title in titles]
    return f"{100 * max(sum(of) / len(of) for of in losses):.1f}%" if losses else "?"
