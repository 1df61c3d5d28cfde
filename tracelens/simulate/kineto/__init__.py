"""Write a simulated run as the PyTorch profiler would: one Kineto file a rank."""

from tracelens.simulate.kineto.writer import SCHEMAS, write

__all__ = ["SCHEMAS", "write"]
