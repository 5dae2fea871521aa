"""What bisects have found so far: a record for each question, so that one that was interrupted goes on.

`ROOT/bisects/KEY.json`; the key is made of everything that an answer depends on. `gc` leaves the records: what was
found stays true when the generations that were built for it are gone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from crossgrade.errors import StoreError
from crossgrade.store.atomic import make_folder, write_json
from crossgrade.store.layout import Store, read_record

SCHEMA = 1


@dataclass(frozen=True)
class Tested:
    """One set of changes that was tested: the keys of its groups, the answer, and where it is from."""

    changes: tuple[str, ...]
    answer: str
    reason: str
    run: str
    seconds: float
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BisectRecord:
    """`question` is what the key is made of, for people; `result` is None until it has ended."""

    key: str
    question: Mapping[str, Any]
    tested: tuple[Tested, ...] = ()
    result: Mapping[str, Any] | None = None

    def with_test(self, tested: Tested) -> BisectRecord:
        return replace(self, tested=(*self.tested, tested))

    def answer_of(self, changes: Sequence[str]) -> Tested | None:
        """The answer on record for this set of groups, whatever their order."""
        return next((one for one in self.tested if set(one.changes) == set(changes)), None)


def question_key(question: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()[:16]


def read_bisect(store: Store, question: Mapping[str, Any]) -> BisectRecord:
    """The record of a question; an empty one where there is none. Raises StoreError for a damaged record."""
    key = question_key(question)
    path = store.root / "bisects" / f"{key}.json"
    if not path.exists():
        return BisectRecord(key, question)
    value = read_record(path)
    try:
        tested = tuple(
            Tested(
                tuple(map(str, one["changes"])),
                str(one["answer"]),
                str(one["reason"]),
                str(one["run"]),
                float(one["seconds"]),
                dict(one.get("details", {})),
            )
            for one in value["tested"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"the record {path} is damaged: {error!r}", remedy="With --anew the bisect begins from the start."
        ) from error
    return BisectRecord(key, question, tested, value.get("result"))


def write_bisect(store: Store, record: BisectRecord) -> None:
    """Durably, whole or not at all. Needs the lock."""
    folder = store.root / "bisects"
    make_folder(folder, 0o700)
    value = {
        "schema": SCHEMA,
        "question": dict(record.question),
        "tested": [asdict(one) for one in record.tested],
        "result": record.result,
    }
    write_json(folder / f"{record.key}.json", json.loads(json.dumps(value, default=str)))
