"""Run every check over a run, and say what ranks share once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tracelens.doctor import kineto, nsight, other, whole_run
from tracelens.doctor.check import LEVELS, Check, Found, Lack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracelens.model.result import Notice
    from tracelens.run import Run

_BY_FORMAT = {"kineto": kineto.CHECKS, "nsight": nsight.CHECKS}
_TABLES: tuple[tuple[Check[Any], ...], ...] = (*_BY_FORMAT.values(), other.CHECKS)
# A check's place in its table says how important it is; what the whole run lacks comes first.
_PLACES: dict[Check[Any], int] = {
    **{check: place for table in _TABLES for place, check in enumerate(table)},
    **dict.fromkeys(whole_run.CHECKS, -1),
}


class _Struck(NamedTuple):
    """A check that found something, and where."""

    found: Found
    rank: int | None = None
    file: str | None = None


def examine(run: Run, file_notices: Iterable[Notice] = ()) -> list[Lack]:
    """Return what a run lacks, most important first.

    Args:
        run: The assembled ranks.
        file_notices: What reading said about files that are in no rank.
    """
    struck: dict[tuple[Check[Any], str], list[_Struck]] = {}
    for check, one in (*_in_run(run), *_in_files(run)):
        struck.setdefault((check, one.found.detail), []).append(one)
    found = [(_PLACES[check], _lack(check, places)) for (check, _), places in struck.items()]
    lacks = [_unread(notice) for notice in file_notices]
    lacks += [lack for _, lack in sorted(found, key=lambda item: item[0])]
    return sorted(lacks, key=lambda lack: LEVELS.index(lack.level))


def _in_run(run: Run) -> Iterator[tuple[Check[Any], _Struck]]:
    for check in whole_run.CHECKS:
        if (found := check.find(run)) is not None:
            yield check, _Struck(found)


def _in_files(run: Run) -> Iterator[tuple[Check[Any], _Struck]]:
    for rank in run.ranks:
        for cycle in rank.cycles:
            for check in _BY_FORMAT.get(cycle.info.format.partition("-")[0], other.CHECKS):
                if (found := check.find(cycle)) is not None:
                    yield check, _Struck(found, rank.rank, cycle.info.path)


def _lack(check: Check[Any], struck: list[_Struck]) -> Lack:
    """Say once what a check found in one file or many."""
    total = struck[0].found
    for one in struck[1:]:
        total += one.found
    return Lack(
        check=check.name,
        level=check.level,
        sections=check.sections,
        what=check.say(total),
        costs=check.costs,
        remedy=check.remedy,
        ranks=tuple(sorted({one.rank for one in struck if one.rank is not None})),
        files=tuple(sorted({one.file for one in struck if one.file is not None})),
    )


def _unread(notice: Notice) -> Lack:
    """Say what reading said about files that are in no rank."""
    harmless = notice.level == "info"
    return Lack(
        check=notice.code,
        level="remark" if harmless else "missing",
        sections=("Trust",),
        what=notice.message,
        costs="no number" if harmless else "what it holds is in no section",
        remedy=f"see docs/messages.md#{notice.code}",
        ranks=(),
        # What was left out is one notice for many files, which names them itself.
        files=(notice.file,) if notice.file and not harmless else (),
    )
