"""Which cases differ, against any checkout: `python -m tests.conformance.triage [--source SRC] [--full] [NAME-GLOB …]`.

For people who build a part; the tests do not use it.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import tempfile
from pathlib import Path

from tests.conformance.cases import all_cases, table
from tests.support.both_ways import Batch, BothWays, described, differing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, help="the src folder of another checkout")
    parser.add_argument("--full", action="store_true", help="say what differs")
    parser.add_argument("globs", nargs="*", default=["*"])
    asked = parser.parse_args()
    cases = [case for name, case in all_cases().items() if any(fnmatch.fnmatch(name, glob) for glob in asked.globs)]
    wanted, not_yet = table("differences.yml"), table("not_yet.yml")
    same = 0
    with tempfile.TemporaryDirectory() as folder, BothWays(Path(folder), asked.source) as both:
        batch = Batch(both, cases)
        for case in cases:
            theirs, ours = batch.outcome(case.name)
            found = differing(ours, theirs)
            if found == wanted.get(case.name, {}).get("differs", []):
                same += 1
                if case.name in not_yet:
                    sys.stdout.write(f"{case.name}: now as wanted, take it out of not_yet.yml\n")
                continue
            sys.stdout.write(f"{case.name} ({not_yet.get(case.name, '')}): {', '.join(found) or 'does not differ'}\n")
            if asked.full:
                sys.stdout.write(described(ours, theirs, found) + "\n\n")
        batch.close()
    sys.stdout.write(f"{same} of {len(cases)} as wanted\n")


if __name__ == "__main__":
    main()
