"""Coverage-guided fuzzing of the readers of ELF files, by hand (docs/inspector.md, "Hostile files"):

python tests/fuzz/atheris_elf.py -runs=10000000 -max_len=8192 CORPUS

CORPUS is a folder; where it is empty it is filled with small real files. Options are libFuzzer's.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

with atheris.instrument_imports(include=["crossgrade.inspect"]):
    from tests.support.hostile import INTERESTING, changed, fields, read_elf, small_elf_files


def fuzz_one(data: bytes) -> None:
    """One execution."""
    read_elf(data)


def mutate(data: bytes, most: int, seed: int) -> bytes:
    """Half of all changes are libFuzzer's, half replace numbers in headers and tables."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    places = fields(data)
    if not places or chance.random() < 0.5:
        return bytes(atheris.Mutate(data, most))
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        place, width = chance.choice(places)
        number = int.from_bytes(data[place : place + width], "little")
        near = number + chance.choice((-64, -8, -1, 1, 8, 64))
        other_place, other_width = chance.choice(places)
        other = int.from_bytes(data[other_place : other_place + other_width], "little")
        bit = number ^ 1 << chance.randrange(8 * width)
        data = changed(data, place, width, chance.choice((near, other, bit, len(data), chance.choice(INTERESTING))))
    return data[:most]


def main() -> None:
    """Fill an empty corpus, and fuzz."""
    for folder in (Path(each) for each in sys.argv[1:] if not each.startswith("-")):
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            for name, content in small_elf_files().items():
                (folder / name.replace(" ", "-")).write_bytes(content)
    atheris.Setup(sys.argv, fuzz_one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
