"""Rules that name the data-parallel strategy of a step's traffic."""
