"""Load by another program: SGLang's bench_serving, guidellm or aiperf, where they are installed.

They are told what our profile says as far as they can be told it, and their reports are read (`tool_reports`). The
prompts of guidellm and aiperf are ours, from a file; bench_serving makes its own of random tokens. The same program
measures both servers: it is found on PATH, or named by `tool_command`.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from crossgrade.bench.load_profile import PATHS, LoadProfile, Tool
from crossgrade.bench.planned import planned_requests
from crossgrade.bench.samples import LoadResult
from crossgrade.bench.tool_reports import parse_report
from crossgrade.errors import TaskError

COMMANDS: Mapping[Tool, tuple[str, ...]] = {
    "sglang": ("python3", "-m", "sglang.bench_serving"),
    "guidellm": ("guidellm",),
    "aiperf": ("aiperf",),
}
REPORTS: Mapping[Tool, str] = {"sglang": "report.jsonl", "guidellm": "report.json", "aiperf": "profile_export.jsonl"}
START_SECONDS = 600.0  # these tools import torch and load a tokenizer
LAST_WORDS = 5
_SGLANG_BACKENDS = {"completions": "sglang-oai", "chat": "sglang-oai-chat", "generate": "sglang"}


class OtherToolError(TaskError):
    """Another load tool is not there, cannot do what is asked, failed, or wrote no report."""


def run_other_tool(base_url: str, profile: LoadProfile) -> LoadResult:
    """Have `profile.tool` put the load on the server, and read its report.

    Raises OtherToolError and ToolReportError.
    """
    from crossgrade.process import StartError, run_process

    tool = profile.tool
    if tool == "guidellm" and profile.warmup_requests:  # it has no warm-up by number
        from crossgrade.bench.load import run_load

        warm_up = replace(profile, tool="builtin", requests=profile.warmup_requests, warmup_requests=0)
        run_load(base_url, warm_up)
    with tempfile.TemporaryDirectory(prefix="crossgrade-load-") as name:
        folder = Path(name)
        argv = (*(profile.tool_command or COMMANDS[tool]), *tool_arguments(base_url, profile, folder))
        count = profile.requests + profile.warmup_requests
        limit = START_SECONDS + profile.timeout * (1 + count / (profile.concurrency if profile.rate is None else 1))
        try:
            completed = run_process(argv, env=os.environ, cwd=folder, timeout=limit)
        except StartError as error:
            remedy = f"install it, or say by `tool_command` how {tool} is called, or use `tool: builtin`"
            raise OtherToolError(f"{tool} cannot be started: {error.message}", remedy=remedy) from error
        words = " / ".join((completed.stdout + completed.stderr).strip().splitlines()[-LAST_WORDS:])
        if not completed.succeeded:
            raise OtherToolError(f"{tool}: {completed.outcome()}: {words}", remedy=" ".join(argv))
        report = folder / REPORTS[tool]
        try:
            text = report.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise OtherToolError(f"{tool} wrote no report: {error}; it said: {words}", remedy=" ".join(argv)) from error
    return parse_report(tool, text, profile)


def tool_arguments(base_url: str, profile: LoadProfile, folder: Path) -> tuple[str, ...]:
    """The arguments of one run; the file of prompts is written into `folder`, where the report will be.

    `profile.tool_arguments` come last, so that they can say otherwise. Raises OtherToolError for a profile that the
    tool cannot carry out.
    """
    made = {"sglang": _for_sglang, "guidellm": _for_guidellm, "aiperf": _for_aiperf}[profile.tool]
    return (*made(base_url, profile, folder), *profile.tool_arguments)


def _for_sglang(base_url: str, profile: LoadProfile, folder: Path) -> list[str]:
    if profile.prompts or profile.prompt_set or profile.shared_prefix_words:
        raise OtherToolError(
            "bench_serving is not handed our prompts: it makes its own",
            remedy="leave prompts out; name a dataset of its own in `tool_arguments`, or use `tool: builtin`",
        )
    if profile.prompt_lengths or profile.output_lengths:
        raise OtherToolError(
            "bench_serving has no such distributions of lengths",
            remedy="say --random-range-ratio in `tool_arguments`, or use `tool: builtin`",
        )
    _no_constant_rate(profile)
    load = (
        ["--max-concurrency", str(profile.concurrency)]
        if profile.rate is None
        else ["--request-rate", f"{profile.rate:g}", "--max-concurrency", str(profile.most_in_flight)]
    )
    return [
        *("--backend", _SGLANG_BACKENDS[profile.endpoint]),
        *("--base-url", base_url),
        *(("--model", profile.model) if profile.model else ()),
        *("--dataset-name", "random-ids"),
        *("--random-input-len", str(profile.prompt_words)),
        *("--random-output-len", str(profile.max_tokens)),
        *("--random-range-ratio", "1.0"),
        *("--num-prompts", str(profile.requests)),
        *load,
        *("--warmup-requests", str(profile.warmup_requests)),
        *("--seed", str(profile.seed)),
        *("--output-file", str(folder / REPORTS["sglang"])),
        "--output-details",
    ]


def _no_constant_rate(profile: LoadProfile) -> None:
    if profile.rate is not None and profile.arrivals != "poisson":
        raise OtherToolError("bench_serving sends at random moments only", remedy="arrivals: poisson")


def _for_guidellm(base_url: str, profile: LoadProfile, folder: Path) -> list[str]:
    path = _openai_path(profile)
    load = (
        f"kind=concurrent,streams={profile.concurrency}"
        if profile.rate is None
        else f"kind={profile.arrivals},rate={profile.rate:g},max_concurrency={profile.most_in_flight}"
    )
    backend = f"kind=openai_http,target={base_url},request_format={path},validate_backend=false"
    return [
        "run",
        *("--backend", backend + (f",model={profile.model}" if profile.model else "")),
        *("--profile", load),
        *("--constraint", f"kind=max_requests,count={profile.requests}"),
        *("--data", f"kind=json_file,path={_write_prompts(profile, folder, 'prompt', 'output_tokens_count')}"),
        *("--output", f"kind=json,path={folder / REPORTS['guidellm']}"),
        "--disable-console",
    ]


def _for_aiperf(base_url: str, profile: LoadProfile, folder: Path) -> list[str]:
    load = ["--concurrency", str(profile.concurrency)]
    if profile.rate is not None:
        load = [*("--request-rate", f"{profile.rate:g}"), *("--arrival-pattern", profile.arrivals)]
        load += ["--concurrency", str(profile.most_in_flight)]
    _openai_path(profile)
    return [
        "profile",
        *("--url", base_url),
        *("--endpoint-type", "chat" if profile.endpoint == "chat" else "completions"),
        *(("--model", profile.model) if profile.model else ()),
        "--streaming",
        "--use-server-token-count",
        "--use-legacy-max-tokens",
        *("--input-file", str(_write_prompts(profile, folder, "text", "output_length"))),
        *("--custom-dataset-type", "single-turn"),
        *load,
        *("--request-count", str(profile.requests)),
        *(("--warmup-request-count", str(profile.warmup_requests)) if profile.warmup_requests else ()),
        *("--random-seed", str(profile.seed)),
        *("--extra-inputs", json.dumps({"temperature": 0, **profile.extra_body})),
        *("--ui", "none"),
        *("--artifact-dir", str(folder)),
    ]


def _openai_path(profile: LoadProfile) -> str:
    if profile.endpoint == "generate":
        raise OtherToolError(f"{profile.tool} does not know SGLang's /generate", remedy="endpoint: completions or chat")
    return PATHS[profile.endpoint]


def _write_prompts(profile: LoadProfile, folder: Path, text: str, tokens: str) -> Path:
    """A line of JSON for each request, by the names that the tool has for text and length."""
    path = folder / "prompts.jsonl"
    count = profile.requests + profile.warmup_requests
    planned = itertools.islice(planned_requests(profile), count)
    lines = [json.dumps({text: request.prompt, tokens: request.max_tokens}) for request in planned]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
