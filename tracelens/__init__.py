"""Read profiler traces of distributed training: where time goes, whether bytes match theory."""

from tracelens.version import __version__

__all__ = ["__version__"]
