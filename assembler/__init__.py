"""Conda recipes in, a clean OCI image out: the assembler of the ATOM stack for AMD GPUs."""

__version__ = "0.1.0"
