"""Write a simulated run as Nsight Systems exports it: SQLite, one file a node or a rank."""

from tracelens.simulate.nsight.writer import SCHEMAS, Options, write

__all__ = ["SCHEMAS", "Options", "write"]
