"""Names of kernels and copies as H100s report them, and the operators that launch them."""

from __future__ import annotations

from typing import NamedTuple


class Kernel(NamedTuple):
    """A kernel's name and its operator."""

    name: str
    operator: str


_ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}>"

MATMUL = Kernel("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "aten::mm")
GROUPED_MATMUL = Kernel("nvjet_tst_192x192_64x4_2x1_v_bz_TNN", "aten::bmm")
ATTENTION = Kernel(
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128_4x1x1",
    "aten::_scaled_dot_product_cudnn_attention",
)
ATTENTION_BACKWARD = Kernel(
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x128x128_4x1x1",
    "aten::_scaled_dot_product_cudnn_attention_backward",
)
NORM = Kernel(
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>",
    "aten::native_layer_norm",
)
NORM_BACKWARD = Kernel(
    "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel<c10::BFloat16, float>",
    "aten::native_layer_norm_backward",
)
ACTIVATION = Kernel(_ELEMENTWISE.format("GeluCUDAKernelImpl"), "aten::gelu")
ACTIVATION_BACKWARD = Kernel(
    _ELEMENTWISE.format("GeluBackwardCUDAKernelImpl"), "aten::gelu_backward"
)
ADD = Kernel(_ELEMENTWISE.format("CUDAFunctor_add<c10::BFloat16>"), "aten::add")
FILL = Kernel(_ELEMENTWISE.format("FillFunctor<float>"), "aten::zero_")
EMBEDDING = Kernel(
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long>",
    "aten::embedding",
)
EMBEDDING_BACKWARD = Kernel(
    "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<c10::BFloat16>",
    "aten::embedding_dense_backward",
)
CROSS_ENTROPY = Kernel(
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, float>",
    "aten::_log_softmax",
)
CROSS_ENTROPY_BACKWARD = Kernel(
    "void at::native::(anonymous namespace)::cunn_SoftMaxBackward<8, float, float, c10::BFloat16>",
    "aten::_log_softmax_backward_data",
)
TOP_K = Kernel(
    "void at::native::sbtopk::gatherTopK<c10::BFloat16, unsigned int, 2, false>", "aten::topk"
)
PERMUTE = Kernel("void at::native::index_elementwise_kernel<128, 4>", "aten::index")
COPY_IN = Kernel(
    "void at::native::detail::chunk_cat_cuda_kernel<float, c10::BFloat16>", "fsdp::chunk_cat"
)
COPY_OUT = Kernel(
    "void at::native::detail::split_with_sizes_copy_out_contiguous_no_cast_kernel<unsigned int>",
    "fsdp::split_with_sizes_copy",
)
NORM_OF_GRADIENTS = Kernel(
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<LpNormFunctor<float>>",
    "aten::_foreach_norm",
)
ADAM = Kernel(
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamFunctor<float>>",
    "aten::_fused_adam_",
)

TO_DEVICE = "Memcpy HtoD (Pinned -> Device)"
TO_HOST = "Memcpy DtoH (Device -> Pageable)"

_TYPES = {"BFloat16": "bf16", "Half": "f16", "Float": "f32", "Long": "i64", "Int": "i32"}
_STORAGE = "(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = f"ncclDevKernel_SendRecv{_STORAGE}"


def nccl(op: str, dtype: str) -> str:
    """Name the kernel of a collective; NCCL names some by type, all by one algorithm.

    NCCL 2.30 src/device/generate.py: every all-gather algorithm maps to one kernel. An all-to-all
    is grouped sends and receives.
    """
    short = _TYPES.get(dtype, "i8")
    return {
        "all_reduce": f"ncclDevKernel_AllReduce_Sum_{short}_RING_LL{_STORAGE}",
        "reduce_scatter": f"ncclDevKernel_ReduceScatter_Sum_{short}_RING_LL{_STORAGE}",
        "all_gather": f"ncclDevKernel_AllGather_RING_LL{_STORAGE}",
        "broadcast": f"ncclDevKernel_Broadcast_RING_LL{_STORAGE}",
        "all_to_all": SEND_RECV,
    }[op]
