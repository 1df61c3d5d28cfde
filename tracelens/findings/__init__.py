"""What to change: small rules, each registered by a decorator, ordered by the time to gain."""

from tracelens.findings import network
from tracelens.findings.evidence import Network
from tracelens.findings.rules import find

__all__ = ["Network", "find", "network"]
