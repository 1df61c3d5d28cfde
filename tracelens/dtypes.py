"""Item sizes of the dtype names profilers print."""

from __future__ import annotations

# c10::toString prints Half; `Input type` of record_shapes prints c10::Half, float, long int.
_SIZES = {
    1: "byte char bool qint8 quint8 int8 uint8 unsigned-char signed-char float8_e5m2 float8_e4m3fn "
    "float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2",
    2: "short uint16 int16 half bfloat16 float16 short-int unsigned-short",
    4: "int uint32 int32 float float32 qint32 complexhalf unsigned-int",
    8: "long unsigned-long uint64 int64 double float64 complexfloat long-int "
    "complex64 c10::complex<float>",
    16: "complexdouble complex128 c10::complex<double>",
}
_SIZE_OF = {name: size for size, names in _SIZES.items() for name in names.split()}

_STANDARD = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "long": "int64",
    "long-int": "int64",
    "int": "int32",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "unsigned-char": "uint8",
}

INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)) | {
    "bool"
}
"""Standard names of types no gradient has."""

ALIASES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
"""Short names a user may type (`--dtype bf16`)."""


def _plain(name: str) -> str:
    lowered = name.strip().lower().replace(" ", "-")
    if lowered.startswith("c10::complex"):
        return lowered
    return lowered.removeprefix("c10::").removeprefix("torch.")


def standard_name(name: str | None) -> str | None:
    """Return torch's own name (`bfloat16`) for a recorded dtype; None if there is none."""
    if not name:
        return None
    plain = _plain(name)
    plain = ALIASES.get(plain, plain)
    return _STANDARD.get(plain, plain)


def item_size(name: str | None) -> int | None:
    """Return the bytes of one element; None if the dtype is unknown (never a guess)."""
    if not name:
        return None
    plain = _plain(name)
    return _SIZE_OF.get(ALIASES.get(plain, plain))
