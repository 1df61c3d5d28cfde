"""Simulate distributed training and record it as a profiler would, with the truth beside it."""

from tracelens.simulate import kineto
from tracelens.simulate.layout import Layout
from tracelens.simulate.machine import Link, Machine
from tracelens.simulate.options import Options
from tracelens.simulate.run import simulate, write
from tracelens.theory.transformer import Model

__all__ = ["Layout", "Link", "Machine", "Model", "Options", "kineto", "simulate", "write"]
