"""Formulas with their sources: pure functions that see neither traces nor results."""
