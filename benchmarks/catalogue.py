"""Operators and kernels of a transformer's training step, as profiles of H100s name them."""

from __future__ import annotations

from typing import NamedTuple


class Op(NamedTuple):
    """An operator of a group: where it begins and how long it runs, as shares of the group."""

    name: str
    start: float
    length: float
    args: str


class Kernel(NamedTuple):
    """A kernel: its usual length in ns and its launch arguments."""

    name: str
    length: int
    args: str


_PLAIN = '"Record function id": 0'
_BACKWARD = '"Sequence number": 11445, "Fwd thread id": 1, "Record function id": 0'


def _shapes(*sizes: str) -> str:
    """Write the arguments `record_shapes=True` adds."""
    empty = ", ".join('""' for _ in sizes)
    types = ", ".join('"c10::BFloat16"' for _ in sizes)
    return (
        f'"Record function id": 0, "Concrete Inputs": [{empty}], "Input type": [{types}], '
        f'"Input Dims": [{", ".join(sizes)}]'
    )


# Six operators nest as they do in torch: each line is deeper or later than the one before.
_PLACES = ((0.0, 1.0), (0.08, 0.18), (0.12, 0.1), (0.3, 0.68), (0.36, 0.2), (0.6, 0.36))


def _group(*names: str, args: str = _PLAIN, shapes: str = "") -> list[Op]:
    given = [shapes or args] + [args] * (len(names) - 1)
    return [Op(n, *place, a) for n, place, a in zip(names, _PLACES, given, strict=True)]


FORWARD = [
    _group(
        "aten::linear",
        "aten::t",
        "aten::transpose",
        "aten::matmul",
        "aten::view",
        "aten::mm",
        shapes=_shapes("[4, 2048, 4096]", "[4096, 4096]"),
    ),
    _group(
        "aten::layer_norm",
        "aten::empty",
        "aten::view",
        "aten::native_layer_norm",
        "aten::empty_like",
        "aten::native_layer_norm",
        shapes=_shapes("[4, 2048, 4096]", "[4096]"),
    ),
    _group(
        "aten::scaled_dot_product_attention",
        "aten::transpose",
        "aten::as_strided",
        "aten::_scaled_dot_product_flash_attention",
        "aten::empty_like",
        "aten::_flash_attention_forward",
    ),
    _group(
        "aten::gelu",
        "aten::empty",
        "aten::as_strided",
        "aten::add",
        "aten::empty_strided",
        "aten::mul",
    ),
]

BACKWARD = [
    _group(
        "autograd::engine::evaluate_function: MmBackward0",
        "aten::t",
        "aten::transpose",
        "MmBackward0",
        "aten::t",
        "aten::mm",
        args=_BACKWARD,
    ),
    _group(
        "autograd::engine::evaluate_function: NativeLayerNormBackward0",
        "aten::empty",
        "aten::empty_like",
        "NativeLayerNormBackward0",
        "aten::empty",
        "aten::native_layer_norm_backward",
        args=_PLAIN,
    ),
    _group(
        "autograd::engine::evaluate_function: GeluBackward0",
        "aten::empty",
        "aten::empty_strided",
        "GeluBackward0",
        "aten::empty",
        "aten::gelu_backward",
        args=_PLAIN,
        shapes=_shapes("[4, 2048, 16384]", "[4, 2048, 16384]"),
    ),
]

OPTIMIZER = [
    _group(
        "aten::_foreach_addcdiv_",
        "aten::empty",
        "aten::resize_",
        "aten::_foreach_lerp_",
        "aten::empty",
        "aten::_foreach_sqrt",
    )
]


def _launch(registers: int, shared: int, blocks: float, grid: str, block: str, busy: int) -> str:
    return (
        f'"registers per thread": {registers},      "shared memory": {shared},      '
        f'"blocks per SM": {blocks:.6f},      "warps per SM": {blocks * 8:.6f},      '
        f'"grid": {grid},      "block": {block},      "est. achieved occupancy %": {busy}'
    )


NCCL_LAUNCH = _launch(96, 103808, 0.181818, "[24, 1, 1]", "[544, 1, 1]", 0)

KERNELS = [
    Kernel(
        "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT",
        62_000,
        _launch(168, 213148, 1.0, "[2, 66, 1]", "[384, 1, 1]", 0),
    ),
    Kernel(
        "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT",
        48_000,
        _launch(168, 213148, 1.0, "[66, 2, 1]", "[384, 1, 1]", 0),
    ),
    Kernel(
        "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<"
        "c10::BFloat16>, std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, "
        "std::array<char*, 3ul>)",
        9_000,
        _launch(34, 0, 285.818176, "[37728, 1, 1]", "[128, 1, 1]", 75),
    ),
    Kernel(
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, "
        "float, false>(int, float, c10::BFloat16 const*, c10::BFloat16 const*, "
        "c10::BFloat16 const*, float*, float*, c10::BFloat16*)",
        14_000,
        _launch(40, 24, 62.060608, "[8192, 1, 1]", "[32, 4, 1]", 94),
    ),
    Kernel(
        "triton_poi_fused__to_copy_6",
        5_000,
        _launch(18, 0, 31.030304, "[4096, 1, 1]", "[256, 1, 1]", 100),
    ),
    Kernel(
        "triton_red_fused__log_softmax_backward_data_mul_12",
        17_000,
        _launch(32, 2048, 15.515152, "[2048, 1, 1]", "[512, 1, 1]", 100),
    ),
    Kernel(
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
        "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}> >(int)",
        7_000,
        _launch(22, 0, 124.121216, "[16384, 1, 1]", "[128, 1, 1]", 100),
    ),
    Kernel(
        "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
        "cute::tuple<cute::C<1>, cute::C<1> > > > >(flash::Params)",
        71_000,
        _launch(168, 229376, 1.0, "[132, 1, 1]", "[384, 1, 1]", 0),
    ),
]
