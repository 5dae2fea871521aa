"""`until`, `retries` and `delay`, on tenacity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from crossgrade.engine.results import TaskResult

DEFAULT_RETRIES, DEFAULT_DELAY = 3, 5.0  # seconds; ansible-core's own defaults


def attempts(
    attempt: Callable[[], TaskResult],
    unsatisfied: Callable[[TaskResult], bool],
    *,
    retries: int | None,
    delay: float | None,
    sleep: Callable[[float], None],
    announce: Callable[[str], None],
) -> TaskResult:
    """Make attempts until one satisfies: `retries` + 1 of them at most, `delay` seconds apart.

    The last result is returned, failed when it did not satisfy, with the number of attempts in `attempts`.
    """
    import tenacity

    most = 1 + max(0, DEFAULT_RETRIES if retries is None else retries)
    made = 0

    def one() -> TaskResult:
        nonlocal made
        made += 1
        result = attempt()
        return replace(result, values={**result.values, "attempts": made})

    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(most),
        wait=tenacity.wait_fixed(DEFAULT_DELAY if delay is None else delay),
        retry=tenacity.retry_if_result(unsatisfied),
        before_sleep=lambda state: announce(f"attempt {state.attempt_number} of {most} did not satisfy; waiting"),
        sleep=sleep,
        retry_error_callback=_last,
    )
    result = retrying(one)
    if not unsatisfied(result):
        return result
    # ansible-core leaves the number of retries here when all were in vain, not that of the attempts
    values = {**result.values, "attempts": most - 1}
    message = result.message if result.failed else f"`until` was not met in {made} attempts"
    return replace(result, status="failed", failed=True, message=message, values=values)


def _last(state: object) -> TaskResult:
    outcome: TaskResult = state.outcome.result()  # type: ignore[attr-defined]  # tenacity's RetryCallState
    return outcome
