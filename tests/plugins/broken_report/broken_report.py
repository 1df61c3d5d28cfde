"""A plugin that cannot be imported."""

raise RuntimeError("made to fail")
