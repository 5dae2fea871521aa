"""Waiting until a server that has ended has given the memory of its GPUs back: the driver takes a moment for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

SLACK_BYTES = 512 << 20  # that more may be in use than before: the driver keeps a little
PAUSE_SECONDS = 1.0

Used = Mapping[int, int]


def used_memory(environment: Mapping[str, str]) -> Used:
    """Bytes in use on each GPU, by index; empty where there is no driver or it does not say."""
    from crossgrade.facts.gpu_reading import read_gpus
    from crossgrade.inspect.machine import driver_version
    from crossgrade.inspect.query import run_query

    if driver_version() is None:
        return {}
    found = read_gpus(environment, run_query)
    return {gpu.index: gpu.memory_used_bytes for gpu in found.gpus if gpu.memory_used_bytes is not None}


def still_used(before: Used, now: Used) -> str:
    """What GPUs hold beyond what they held before, in words; "" when they gave it back. Pure."""
    more = {index: used - before[index] for index, used in now.items() if index in before}
    return ", ".join(f"GPU {index} {held / 2**30:.1f} GiB" for index, held in more.items() if held > SLACK_BYTES)


def wait_given_back(before: Used, ask: Callable[[], Used], timeout: float) -> str:
    """Ask until the memory is given back, for at most `timeout` seconds; what is still held then, else ""."""
    if not before:
        return ""
    deadline = time.monotonic() + timeout
    while held := still_used(before, ask()):
        if time.monotonic() >= deadline:
            return held
        time.sleep(PAUSE_SECONDS)
    return ""
