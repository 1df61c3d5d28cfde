"""Damaged traces: some hundred mutations in every run of the tests, the same ones each time.

`make fuzz` tries as many as one likes, other ones each time.
"""

from __future__ import annotations

from collections import Counter

import pytest
from fuzz import material, mutators, properties
from fuzz.atheris_scanner import read_anything
from fuzz.mutators import Case, Known, Row, read, row_of, write
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st


def _known_mutations(count: int) -> settings:
    """Return settings for mutations that never change: the tests do not turn red by chance."""
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@given(mutators.byte_cases())
@_known_mutations(200)
def test_damaged_bytes(case: Case) -> None:
    properties.check(case)


@given(mutators.event_cases())
@_known_mutations(200)
def test_damaged_events(case: Case) -> None:
    properties.check(case)


@given(mutators.byte_cases() | mutators.event_cases())
@_known_mutations(40)
def test_damage_through_the_command(case: Case) -> None:
    properties.check(case, command=True)


@given(mutators.export_cases())
@_known_mutations(80)
def test_damaged_exports(case: Case) -> None:
    properties.check(case)


@given(
    st.binary(max_size=300)
    | mutators.byte_cases().map(lambda case: next(iter(case.files.values())))
)
@_known_mutations(60)
def test_what_atheris_is_given(data: bytes) -> None:
    read_anything(data)


# the suite itself --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", material.names())
def test_what_is_mutated_is_sound_itself(name: str) -> None:
    for text in material.run(name).files:
        assert [write(read(event)) for event in text.events]
        known = mutators.untouched(text)
        properties.check(Case({text.name: text.file()}, name, {text.name: known}))
        assert known.kept.total() == sum(row_of(read(event)) is not None for event in text.events)


def damaged_kernel(*, told: bool) -> Case:
    """Return a run whose second kernel is gone; the oracle knows of it, or of too many."""
    (text, _) = material.run("built, minified").files
    rows = {place: row_of(read(event)) for place, event in enumerate(text.events)}
    place = next(place for place, row in reversed(rows.items()) if row is not None)
    left = [event.encode() for i, event in enumerate(text.events) if i != place]
    kept = Counter(
        row for i, row in rows.items() if row is not None and (told is False or i != place)
    )
    return Case({text.name: text.file(left)}, "", {text.name: Known(kept, Counter(), -1, b"")})


def test_an_undamaged_event_that_is_gone_is_noticed() -> None:
    properties.check(damaged_kernel(told=True))
    with pytest.raises(AssertionError, match="undamaged device events are gone"):
        properties.check(damaged_kernel(told=False))


def test_a_loss_that_nobody_tells_is_noticed() -> None:
    (text, _) = material.run("built, legacy").files
    more = Known(mutators.untouched(text).kept, Counter([Row(0, 77, 78)]), -1, b"")
    case = Case({text.name: text.file()}, "", {text.name: more})
    with pytest.raises(AssertionError, match="1 events lost, 0 told"):
        properties.check(case)
