"""crossgrade: move a GPU inference server to a new CUDA stack as one transaction."""

__version__ = "0.1.0"
