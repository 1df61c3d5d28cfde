"""Fuzz the scanner by coverage: `PYTHONPATH=tests python -m fuzz.atheris_scanner CORPUS`.

Atheris is no dependency: `pip install atheris`. Its options are libFuzzer's: `-max_total_time=300`.
Without a corpus it starts from thinned samples.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

_SIZES = (64, 1 << 10, 1 << 21)


def read_anything(data: bytes) -> None:
    """Read bytes as a file's, in blocks of a size they name, and once more for flow arrows."""
    from tracelens_kineto.collector import Collector
    from tracelens_kineto.scanner import traces

    size = _SIZES[data[0] % len(_SIZES)] if data else 1
    for links in (False, True):
        blocks = (data[at : at + size] for at in range(0, len(data), size))
        for scan in traces(blocks, links=links):
            collector = Collector()
            for batch in scan.batches():
                if not links:
                    collector.add(batch)
            assert scan.damage.device_skipped <= scan.damage.skipped
            assert not scan.whole or scan.closed


def main() -> None:
    """Hand the target to atheris."""
    try:
        import atheris
    except ImportError:
        sys.exit("needs atheris: pip install atheris")
    with atheris.instrument_imports(include=["tracelens_kineto"]):
        import tracelens_kineto.collector
        import tracelens_kineto.scanner  # noqa: F401 - both are instrumented as they are imported
    with tempfile.TemporaryDirectory() as folder:
        given = [] if any(not one.startswith("-") for one in sys.argv[1:]) else [_corpus(folder)]
        atheris.Setup([*sys.argv, *given], read_anything)
        atheris.Fuzz()


def _corpus(folder: str) -> str:
    from fuzz import material

    for number, name in enumerate(material.names()):
        for text in material.run(name).files:
            (Path(folder) / f"{number}-{text.name}").write_bytes(text.file())
    return folder


if __name__ == "__main__":
    main()
