"""Put data and plotly.js into the page so that it needs nothing else and names stay inert."""

from __future__ import annotations

import base64
import functools
import gzip
import json
from typing import Any

# Inside <script>, `<` could end the element and U+2028/9 end a line of older scripts.
_ESCAPES = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


def safe_json(value: Any) -> str:
    """Write JSON that can stand inside a script element, whatever names it holds."""
    raw = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return raw.translate(_ESCAPES)


@functools.cache
def plotly_blob() -> str:
    """Return the installed plotly.js, compressed without a time stamp and in base64."""
    from plotly.offline import get_plotlyjs

    packed = gzip.compress(get_plotlyjs().encode(), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode()
