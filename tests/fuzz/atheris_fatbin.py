"""Coverage-guided fuzzing of the reader of device code, by hand (docs/inspector.md, "Hostile files"):

python tests/fuzz/atheris_fatbin.py -runs=5000000 -max_len=8192 CORPUS

CORPUS is a folder; where it is empty it is filled with what nvcc 13.0 (tests/support/toolkits.py) writes.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

with atheris.instrument_imports(include=["crossgrade.inspect"]):
    from tests.support.hostile import INTERESTING, changed, container_fields, fatbins, read_device
    from tests.support.toolkits import toolkits


def fuzz_one(data: bytes) -> None:
    """One execution."""
    read_device(data)


def mutate(data: bytes, most: int, seed: int) -> bytes:
    """Half of all changes are libFuzzer's, half replace numbers in the headers."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    places = container_fields(data)
    if not places or chance.random() < 0.5:
        return bytes(atheris.Mutate(data, most))
    place, width = chance.choice(places)
    number = int.from_bytes(data[place : place + width], "little")
    near = number + chance.choice((-64, -16, -1, 1, 16, 64))
    bit = number ^ 1 << chance.randrange(8 * width)
    return changed(data, place, width, chance.choice((near, bit, len(data), chance.choice(INTERESTING))))[:most]


def main() -> None:
    """Fill an empty corpus, and fuzz."""
    for folder in (Path(each) for each in sys.argv[1:] if not each.startswith("-")):
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            for name, content in fatbins(toolkits().cuda_13_0).items():
                (folder / name).write_bytes(content)
    atheris.Setup(sys.argv, fuzz_one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
