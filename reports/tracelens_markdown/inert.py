"""Write words of unknown origin so that GitHub shows them and does nothing else with them.

Names may hold pipes, backticks, HTML, links, mentions and references. Inside code spans GitHub
reads none of these but the pipes of a table; outside, every one of them has to be disarmed.
"""

from __future__ import annotations

import re

from tracelens.reporting import words

# Shows nothing, and keeps `@name`, `#12` or `www.` from being read as one word.
_BREAK = "\u200b"

_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "$": "&#36;"})
_MARKUP = re.compile(r"([\\`*_{}\[\]~])")
# An underscore in the name of an emoji has its backslash by then, and is shown without.
_REFERENCES = re.compile(
    r"[@#]|:(?=//)|(?<=\bwww)\.|(?<=\bgh)-(?=\d)|:(?=(?:[\w+-]|\\_)+:)", re.IGNORECASE
)
# What would make a line a list, a rule or a heading's underline.
_BLOCK_START = re.compile(r"^(?=[-+](?:\s|$)|\d+[.)](?:\s|$)|[-=]+\s*$)")


def text(value: str) -> str:
    """Write a sentence that no part of is read as markup."""
    shown = words.visible(value).strip()
    shown = _MARKUP.sub(r"\\\1", shown).translate(_ENTITIES)
    shown = _REFERENCES.sub(_parted, shown)
    return _BLOCK_START.sub(_BREAK, shown)


def _parted(found: re.Match[str]) -> str:
    # Some renderers take a break behind the sign for a part of an address, GitHub does not.
    return f"{_BREAK if found[0] == '@' else ''}{found[0]}{_BREAK}"


def code(value: str, *, most: int = 200) -> str:
    """Write a name as a code span, which may stand in a table."""
    shown = words.visible(value)
    shown = shown if len(shown) <= most else f"{shown[: most - 1]}…"
    # A backslash before a pipe is read differently by different parsers, so they are parted.
    shown = shown.replace("\\|", f"\\{_BREAK}|").replace("|", "\\|")
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * (longest + 1)
    # A span must not be empty, begin or end with its fence, or end in a lone backslash.
    padded = f" {shown} " if not shown.strip() or shown[0] in "` " or shown[-1] in "` \\" else shown
    return f"{fence}{padded}{fence}"


def prose(value: str) -> str:
    """Write a sentence whose parts between backticks are code."""
    parts = value.split("`")
    if len(parts) % 2 == 0:
        return text(value)
    written = [
        code(part) if index % 2 and part.strip() else _keep_space(part)
        for index, part in enumerate(parts)
    ]
    return "".join(written).strip()


def _keep_space(part: str) -> str:
    before = " " if part[:1] == " " else ""
    after = " " if len(part) > 1 and part[-1] == " " else ""
    return f"{before}{text(part)}{after}"


def block(lines: list[str]) -> str:
    """Write lines as a block of code."""
    shown = [words.visible(line) for line in lines]
    longest = max((len(run) for line in shown for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(longest + 1, 3)
    return "\n".join([f"{fence}text", *shown, fence])


def slug(value: str) -> str:
    """Keep only what an HTML comment and a search for it can hold."""
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", value)
    return re.sub(r"--+", "-", kept)[:60].strip("-.") or "run"
