"""Try many mutations, from a seed that is printed first; keep the inputs that fail.

Mutations come in rounds of one kind. A round has a seed of its own and stops at its first failure,
so a failure is repeated by its round alone.
"""

from __future__ import annotations

import argparse
import secrets
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fuzz import mutators, properties
from hypothesis import HealthCheck, Phase, given, seed, settings

if TYPE_CHECKING:
    from fuzz.mutators import Case
    from hypothesis.strategies import SearchStrategy

KINDS: dict[str, tuple[SearchStrategy[Case], float]] = {
    "bytes": (mutators.byte_cases(), 0.4),
    "events": (mutators.event_cases(), 0.5),
    "nsight": (mutators.export_cases(), 0.1),
}
"""What is mutated, and its share of all mutations."""

ROUND = 100
FAILED = Path(__file__).parents[1] / "actual" / "fuzz"
_BY_COMMAND = 8  # of so many one goes through the real command, with a report of every kind


@dataclass
class Round:
    """A hundred mutations of one kind, or as many as hold up to the first that fails."""

    kind: str
    seed: int
    tried: int = 0
    failed: Case | None = None
    error: Exception | None = None

    @property
    def name(self) -> str:
        """Return what `REPLAY` takes."""
        return f"{self.kind}-{self.seed}"

    @classmethod
    def named(cls, name: str) -> Round:
        """Return the round of a name."""
        kind, _, number = name.rpartition("-")
        return cls(kind, int(number))

    def play(self) -> Round:
        """Try its mutations."""

        @seed(self.seed)
        @settings(
            max_examples=ROUND,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        @given(KINDS[self.kind][0])
        def hold(case: Case) -> None:
            if self.error is None:
                self._try(case)

        hold()
        return self

    def _try(self, case: Case) -> None:
        self.tried += 1
        try:
            properties.check(case, command=self.tried % _BY_COMMAND == 0)
        except Exception as error:
            self.failed, self.error = case, error

    def keep(self) -> str:
        """Write the input that fails, and why, into a folder; return what to say."""
        assert self.failed is not None
        assert self.error is not None
        folder = FAILED / self.name
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in self.failed.files.items():
            (folder / file).write_bytes(data)
        reason = "".join(traceback.format_exception(self.error))
        (folder / "why.txt").write_text(f"{self.failed.story}\n\n{reason}")
        shown = f"{type(self.error).__name__}: {self.error}".partition("\n")[0]
        return (
            f"FAILED {self.failed.story}\n  {shown:.300}\n  input: {folder}\n"
            f"  repeat: make fuzz REPLAY={self.name}"
        )


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="how many mutations")
    parser.add_argument("--seed", type=int, help="of an earlier run, to repeat it")
    parser.add_argument("--replay", metavar="ROUND", help="repeat one round, as a failure names it")
    asked = parser.parse_args()
    if asked.replay:
        one = Round.named(asked.replay).play()
        print(one.keep() if one.error else f"{one.tried} mutations hold")
        return int(one.error is not None)
    first = secrets.randbelow(1 << 32) if asked.seed is None else asked.seed
    print(f"{asked.count:,} mutations; repeat with SEED={first}", flush=True)
    return _explore(asked.count, first)


def _explore(count: int, first: int) -> int:
    began = time.monotonic()
    tried: Counter[str] = Counter()
    failed: list[str] = []
    while tried.total() < count:
        kind = min(KINDS, key=lambda name: tried[name] / KINDS[name][1])
        one = Round(kind, first).play()
        first += 1
        tried[kind] += one.tried
        if one.error is not None:
            failed.append(one.name)
            print(one.keep(), flush=True)
        shown = ", ".join(f"{number:,} {name}" for name, number in tried.items())
        done = f"{tried.total():,} of {count:,} ({shown}), {len(failed)} failed"
        print(f"{done}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "all hold")
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
