"""Simulate distributed training and record it as a profiler would, with the truth beside it."""
