"""Pipelines: their stages and schedules, and the bubble, from sends and receives."""

from __future__ import annotations

from tracelens.pipeline.result import Pipelines, observe

__all__ = ["Pipelines", "observe"]
