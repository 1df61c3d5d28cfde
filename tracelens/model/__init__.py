"""The two data models: what parsers deliver (trace) and what analysis yields (result)."""
