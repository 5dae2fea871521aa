"""The task modules, one file each. They are imported when a playbook names them, not before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossgrade.modules.contract import Module

# The playbook's name of a module, and the file that it lives in. Most are the same; `assert` is a Python keyword.
NAMES: dict[str, str] = {
    "abi_check": "abi_check",
    "consistency_check": "consistency_check",
    "accuracy": "accuracy",
    "activate": "activate",
    "add_host": "add_host",
    "assert": "assert_",
    "benchmark": "benchmark",
    "blockinfile": "blockinfile",
    "command": "command",
    "copy": "copy",
    "cuda_check": "cuda_check",
    "cuda_toolkit": "cuda_toolkit",
    "debug": "debug",
    "drain": "drain",
    "environment_check": "environment_check",
    "extension_build": "extension_build",
    "experiment": "experiment",
    "fail": "fail",
    "file": "file",
    "find": "find",
    "flashinfer_build": "flashinfer_build",
    "flashinfer_jit": "flashinfer_jit",
    "get_url": "get_url",
    "group_by": "group_by",
    "gpu_arch_check": "gpu_arch_check",
    "include_vars": "include_vars",
    "launch_check": "launch_check",
    "lineinfile": "lineinfile",
    "meta": "meta",
    "nccl_check": "nccl_check",
    "preflight": "preflight",
    "python_env": "python_env",
    "replace": "replace",
    "server": "server",
    "sgl_kernel_build": "sgl_kernel_build",
    "sglang_build": "sglang_build",
    "set_fact": "set_fact",
    "slurp": "slurp",
    "smoke_check": "smoke_check",
    "stat": "stat",
    "tempfile": "tempfile",
    "template": "template",
    "unarchive": "unarchive",
    "uri": "uri",
    "venv_backup": "venv_backup",
    "wait_for": "wait_for",
    "shell": "shell",
    "script": "script",
    "ping": "ping",
    "pause": "pause",
    "setup": "setup",
    "gather_facts": "setup",
    "systemd_service": "systemd_service",
    "systemd": "systemd_service",
    "service": "service",
    "git": "git",
    "pip": "pip",
    "apt": "apt",
}


def load_module(name: str) -> Module[Any, Any]:
    """The module with this name. Raises KeyError for a name that is not in `NAMES`."""
    from importlib import import_module

    module: Module[Any, Any] = import_module(f"crossgrade.modules.{NAMES[name]}").MODULE
    return module


def arguments_of(name: str) -> type[Any] | None:
    """The arguments class of a module, or None when there is no such module."""
    return load_module(name).arguments if name in NAMES else None
