"""Frames of a result: right columns, right types, right values, whatever is missing."""

from __future__ import annotations

import re

import analysis_builder
import pytest

from tracelens.model.tables import Tables

NAMES = ("ranks", "steps", "positions", "collectives", "kernels", "predictions", "notices", "files")


@pytest.mark.parametrize("name", NAMES)
def test_columns_are_those_of_the_docstring_even_without_rows(name: str) -> None:
    full = getattr(analysis_builder.fsdp2().tables, name)
    empty = getattr(analysis_builder.nothing().tables, name)

    assert len(full) > 0
    assert len(empty) == 0
    assert list(full.columns) == list(empty.columns)
    assert list(full.dtypes) == list(empty.dtypes)
    documented = getattr(Tables, name).__doc__
    for column in full.columns:
        assert re.search(rf"\b{column}\b", documented), f"{column} is not documented"


def test_steps_have_a_row_a_rank_and_step() -> None:
    analysis = analysis_builder.fsdp2()
    steps = analysis.tables.steps

    assert len(steps) == 4 * 10
    parts = steps[["compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns"]].sum(axis=1)
    assert (parts == steps["window_ns"]).all()
    assert steps["in_mean"].sum() == 4 * 9


def test_unknown_stays_unknown_in_integer_columns() -> None:
    ranks = analysis_builder.without_steps().tables.ranks
    collectives = analysis_builder.one_rank().tables.collectives

    assert ranks["compute_ns"].dtype == "Int64"
    assert ranks["compute_ns"].isna().all()
    assert collectives["message_bytes_per_step"].isna().all()
    assert collectives["role"].tolist() == ["unknown"]


def test_frames_are_made_once() -> None:
    analysis = analysis_builder.fsdp2()

    assert analysis.tables.steps is analysis.tables.steps


def test_positions_name_machines_and_leave_other_dimensions_open() -> None:
    positions = analysis_builder.large(64).tables.positions

    row = positions.to_dict("records")[17]
    assert (row["rank"], row["node"], row["stage"]) == (17, "gpu-a3", 1)
    assert (row["pp"], row["dp"], row["tp"]) == (1, 0, 1)
    assert positions["ep"].isna().all()
    assert analysis_builder.one_rank().tables.positions["node"].isna().all()
