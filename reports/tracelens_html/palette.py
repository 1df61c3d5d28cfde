"""Every colour of the page, as (light, dark).

Graphics reach 3:1 against the page, words 4.5:1, and the five classes stay apart for readers with
any common colour vision; a test computes both. Patterns and words never leave colour alone.
"""

from __future__ import annotations

TOKENS: dict[str, tuple[str, str]] = {
    "page": ("#ffffff", "#14171c"),
    "raised": ("#f6f8fa", "#1c2129"),
    "line": ("#d1d9e0", "#3d444d"),
    "grid": ("#e4e8ec", "#2a3038"),
    "text": ("#1f2328", "#e6edf3"),
    "dim": ("#59636e", "#9198a1"),
    "link": ("#0b57d0", "#79b8ff"),
    "fail": ("#b42318", "#ff7b72"),
    "warn": ("#8a5a00", "#e3b341"),
    "ok": ("#116329", "#56d364"),
    "compute": ("#3D74D9", "#5B8DEF"),
    "exposed": ("#D9600B", "#F0883E"),
    "copies": ("#14532D", "#A7F3D0"),
    "bubble": ("#4C1D5F", "#B23AA8"),
    "idle": ("#8A8F98", "#8B949E"),
    "on-compute": ("#ffffff", "#14171c"),
    "on-copies": ("#ffffff", "#14171c"),
}

GRAPHICS = ("compute", "exposed", "copies", "bubble", "idle")
WORDS = ("text", "dim", "link", "fail", "warn", "ok")


def declarations(theme: int) -> str:
    """Return the CSS custom properties of the light (0) or dark (1) theme."""
    return "\n".join(f"  --{name}: {colours[theme]};" for name, colours in TOKENS.items())
