"""The rehearsal's native package: a small language model whose arithmetic runs in a real CUDA extension."""

from rehearsal_engine._kernels import device_count, device_status, load, runtime_version, step

__all__ = ["device_count", "device_status", "load", "runtime_version", "step"]
