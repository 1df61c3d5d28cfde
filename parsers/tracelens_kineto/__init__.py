"""Parser plugin for PyTorch/Kineto traces (`*.pt.trace.json`, with or without gzip)."""

from tracelens_kineto.parser import KinetoParser

__all__ = ["KinetoParser"]
