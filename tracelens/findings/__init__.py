"""What to change: small rules, each registered by a decorator, ordered by the time to gain."""

from tracelens.findings.rules import find

__all__ = ["find"]
