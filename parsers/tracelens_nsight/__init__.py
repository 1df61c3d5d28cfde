"""Parser plugin for Nsight Systems: SQLite, Parquet and Arrow exports, and reports through nsys."""

from tracelens_nsight.parser import NsightParser

__all__ = ["NsightParser"]
