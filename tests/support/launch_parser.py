"""A small server whose arguments are declared in both ways that SGLang has, for launch_check."""

from __future__ import annotations

# As SGLang 0.5.9: calls in one function.
OLD = b"""
import argparse
import dataclasses

BACKENDS = ["flashinfer", "triton"]


@dataclasses.dataclass
class ServerArgs:
    model_path: str

    def __post_init__(self):
        raise RuntimeError("this would ask a GPU")

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser):
        parser.add_argument("--model-path", "--model", type=str, required=True)
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=30000)
        parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=1)
        parser.add_argument("--cuda-graph-max-bs", type=int)
        parser.add_argument("--attention-backend", choices=BACKENDS + ["cutlass_mla"])
        parser.add_argument("--enable-flashinfer-allreduce-fusion", action="store_true")
        parser.add_argument("--api-key", type=str)
"""

# As SGLang 0.5.23: annotated fields, and what was retired by hand. The value of --extra has a type of its own.
NEW = b"""
import argparse
import dataclasses
import json
import logging
import os
import warnings
from typing import Annotated, Literal, Optional

A = Annotated
BACKENDS = ["flashinfer", "triton"]

if "SGLANG_OLD" in os.environ:
    warnings.warn("Environment variable SGLANG_OLD is deprecated. Please use SGLANG_NEW instead.")


class Retired(argparse.Action):
    def __init__(self, option_strings, dest, new_flag=None, **kwargs):
        self.new_flag = new_flag
        super().__init__(option_strings, dest, nargs=0, **kwargs)

    def __call__(self, parser, namespace, values, option_string=None):
        logging.getLogger("sglang").warning(f"\\033[1;33m'{option_string}' is deprecated. Use {self.new_flag}.\\033[0m")


DeprecatedStoreTrueAction = Retired
DeprecatedStoreTrueAction.__name__ = "DeprecatedStoreTrueAction"


def Arg(**more):
    return more


@dataclasses.dataclass
class ServerArgs:
    model_path: A[str, Arg(help="The model.", aliases=["--model"])]
    host: A[str, "The host."] = "127.0.0.1"
    port: A[int, "The port."] = 30000
    tp_size: A[int, Arg(help="GPUs.", cli_name="--tensor-parallel-size", aliases=["--tp-size"])] = 1
    cuda_graph_max_bs_decode: A[Optional[int], "The largest batch."] = None
    cuda_graph_max_bs_prefill: A[Optional[int], "The largest batch."] = None
    stream_output_interval: A[int, "Tokens."] = 1
    attention_backend: A[Optional[str], Arg(help="Kernels.", choices=BACKENDS)] = None
    flashinfer_allreduce_fusion_backend: A[Optional[Literal["auto", "mnnvl"]], "What fuses."] = None
    extra: A[Optional[str], Arg(help="JSON.", type_parser=json.loads)] = None
    api_key: A[Optional[str], "A secret."] = None
    hidden: A[bool, Arg(no_cli=True)] = False

    def __post_init__(self):
        raise RuntimeError("this would ask a GPU")

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser):
        for name in ServerArgs.__dataclass_fields__:
            if name in ("hidden", "tp_size", "model_path", "attention_backend", "extra"):
                continue
            kind = int if name in ("port", "stream_output_interval") or name.startswith("cuda") else str
            choices = ["auto", "mnnvl"] if name.startswith("flash") else None
            parser.add_argument("--" + name.replace("_", "-"), type=kind, choices=choices)
        parser.add_argument("--model-path", "--model", type=str, required=True)
        parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=1)
        parser.add_argument("--attention-backend", choices=BACKENDS)
        parser.add_argument("--extra", type=json.loads)
        parser.add_argument("--config")
        parser.add_argument("--disable-cuda-graph", action=DeprecatedStoreTrueAction, new_flag="--cuda-graph-backend")
"""

# As the file of SGLang that reads `--config`.
MERGER = b"""
class ConfigArgumentMerger:
    def __init__(self, parser):
        self.parser = parser

    def merge_config_with_args(self, words):
        found = []
        for line in open(words[words.index("--config") + 1]).read().splitlines():
            key, _, value = line.partition(":")
            found += ["--" + key.strip(), value.strip()]
        return found
"""


def server_files(code: bytes = NEW) -> dict[str, bytes]:
    """The files of a wheel `sglang` whose parser launch_check can ask."""
    return {
        "sglang/__init__.py": b"",
        "sglang/srt/__init__.py": b"",
        "sglang/srt/server_args.py": code,
        "sglang/srt/utils/__init__.py": b"",
        "sglang/srt/utils/server_args_config_parser.py": MERGER,
    }
