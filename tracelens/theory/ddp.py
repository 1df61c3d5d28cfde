"""Distributed data parallel: one all-reduce of every gradient."""

from __future__ import annotations

from tracelens.theory.scheme import Scheme, Term

PAPER = "ZeRO, Rajbhandari et al. 2020, section 7.1: an all-reduce moves 2Ψ"
REDUCER = "torch/csrc/distributed/c10d/reducer.cpp: buckets hold every trainable element once"


def paper(parameters: int, size: int) -> Scheme:
    """Predict plain data parallelism: 2Ψ."""
    term = Term("all_reduce", parameters, "gradient", size, f"Ψ = {parameters:,}")
    return Scheme("Data parallel (paper)", "paper", (term,), PAPER)


def torch_ddp(parameters: int, size: int, synchronised: int) -> Scheme:
    """Predict torch DDP: an all-reduce for each of the `synchronised` backward passes of a step.

    Under `no_sync` only the last of a step's micro-batches is synchronised.
    """
    if synchronised == 1:
        term = Term("all_reduce", parameters, "gradient", size, f"Ψ = {parameters:,}")
        return Scheme("DDP", "framework", (term,), REDUCER)
    why = (
        f"gradients are all-reduced in each of the {synchronised} micro-batches; under "
        "`no_sync()` only the last one would be: 2Ψ"
    )
    elements = synchronised * parameters
    formula = f"{synchronised}Ψ = {synchronised} x {parameters:,}"
    term = Term("all_reduce", elements, "gradient", size, formula, why=why)
    name = f"DDP, every one of {synchronised} micro-batches synchronised"
    return Scheme(name, "framework", (term,), REDUCER, why)
