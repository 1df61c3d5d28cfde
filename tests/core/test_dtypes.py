"""Item sizes of the dtypes Kineto prints; unknown is None, never a guess."""

from __future__ import annotations

import pytest

from tracelens.dtypes import item_size, standard_name

SIZES = {
    1: "Byte Char Bool QInt8 QUInt8 Float8_e5m2 Float8_e4m3fn Float8_e4m3fnuz Float8_e5m2fnuz "
    "Float8_e8m0fnu Float4_e2m1fn_x2",
    2: "Short UInt16 Half BFloat16 c10::BFloat16 c10::Half",
    4: "Int UInt32 Float QInt32 ComplexHalf float int",
    8: "Long UInt64 Double ComplexFloat double c10::complex<float>",
    16: "ComplexDouble c10::complex<double>",
}


@pytest.mark.parametrize(("size", "name"), [(s, n) for s, ns in SIZES.items() for n in ns.split()])
def test_recorded_names(size: int, name: str) -> None:
    assert item_size(name) == size


@pytest.mark.parametrize(
    ("name", "size"),
    [("long int", 8), ("unsigned char", 1), ("signed char", 1), ("short int", 2), ("bool", 1),
     ("unsigned short", 2), ("unsigned int", 4), ("unsigned long", 8), ("long", 8), ("short", 2)],
)  # fmt: skip
def test_names_of_cpp(name: str, size: int) -> None:
    assert item_size(name) == size


@pytest.mark.parametrize(("name", "size"), [("bf16", 2), ("fp32", 4), ("torch.float16", 2)])
def test_names_a_user_types(name: str, size: int) -> None:
    assert item_size(name) == size


@pytest.mark.parametrize("name", [None, "", "Undefined", "Float6_e3m2", "nullptr (uninitialized)"])
def test_unknown_is_not_guessed(name: str | None) -> None:
    assert item_size(name) is None


@pytest.mark.parametrize(
    ("name", "standard"),
    [("BFloat16", "bfloat16"), ("c10::Half", "float16"), ("float", "float32"), ("Long", "int64"),
     ("long int", "int64"), ("Float8_e4m3fn", "float8_e4m3fn"), ("bf16", "bfloat16"), ("", None),
     (None, None)],
)  # fmt: skip
def test_standard_names(name: str | None, standard: str | None) -> None:
    assert standard_name(name) == standard
