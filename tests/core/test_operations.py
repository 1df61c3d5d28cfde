"""What names say: every spelling seen, and compute kernels that sound like them."""

from __future__ import annotations

import pytest

from tracelens.operations import CODE, OPERATIONS, canonical, of_kernel_name

STORAGE = "(ncclDevKernelArgsStorage<4096ul>)"

COMMUNICATION_KERNELS = {
    # NCCL, oldest spelling first
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "all_reduce",
    "ncclAllGatherRingLLKernel_copy_i8(ncclColl)": "all_gather",
    "ncclReduceScatterRingLLKernel_sum_f16(ncclColl)": "reduce_scatter",
    "ncclBroadcastRingLLKernel_copy_i8(ncclColl)": "broadcast",
    "ncclReduceRingLLKernel_sum_f32(ncclColl)": "reduce",
    "ncclSendRecvKernel_copy_i8(ncclColl)": "send_recv",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, ncclWork*)": "send_recv",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "all_reduce",
    "ncclKernel_AllReduce_TREE_LL_Sum_half(ncclWorkElem)": "all_reduce",
    "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, ncclWork*)": "all_gather",
    "ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclDevComm*, ncclWork*)": "reduce_scatter",
    "ncclKernel_Reduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "reduce",
    f"ncclDevKernel_AllReduce_Sum_f32_RING_LL{STORAGE}": "all_reduce",
    f"ncclDevKernel_AllReduce_Sum_bf16_TREE_LL{STORAGE}": "all_reduce",
    f"ncclDevKernel_AllReduce_SumPostDiv_u32_RING_LL{STORAGE}": "all_reduce",
    f"ncclDevKernel_AllGather_RING_LL{STORAGE}": "all_gather",
    f"ncclDevKernel_AllGatherV_RING_LL{STORAGE}": "all_gather",
    f"ncclDevKernel_ReduceScatter_Sum_f8e4m3_RING_LL{STORAGE}": "reduce_scatter",
    f"ncclDevKernel_Broadcast_RING_LL{STORAGE}": "broadcast",
    f"ncclDevKernel_Reduce_Sum_f64_RING_LL{STORAGE}": "reduce",
    f"ncclDevKernel_SendRecv{STORAGE}": "send_recv",
    f"ncclDevKernel_Generic{STORAGE}": "unknown",
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(ncclSymkDevWorkArgs const*)": "all_reduce",
    "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32": "all_reduce",
    "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_f16": "all_reduce",
    "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_f32": "all_reduce",
    "ncclSymkDevKernel_AllGather_STMC": "all_gather",
    "ncclSymkDevKernel_ReduceScatter_LDMC_sum_bf16": "reduce_scatter",
    "ncclSymkDevKernel_ReduceScatter_RailA2A_LsaLD_sum_bf16": "reduce_scatter",
    "oneRankReduce": "all_reduce",
    "void (anonymous namespace)::oneRankReduce<FuncPreMulSum<float> >(void*, void*)": "all_reduce",
    # RCCL: one name for everything
    "ncclKernel_Generic": "unknown",
    "ncclKernel_Generic_4": "unknown",
    f"ncclDevKernel_Generic_1{STORAGE}": "unknown",
    f"ncclDevKernel_Generic_2{STORAGE}": "unknown",
    f"ncclDevKernel_Generic_4{STORAGE}": "unknown",
    "mscclKernel_Sum_half_LL(ncclDevComm*, mscclAlgo*, mscclWork*)": "unknown",
    "void mscclpp::collective::allreducePacket<__half>(float*)": "all_reduce",
    # torch symmetric memory
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(": "all_reduce",
    "void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<float, 16>(": "all_reduce",
    "void (anonymous namespace)::multimem_one_shot_reduce_kernel<float, 16>(": "all_reduce",
    "void (anonymous namespace)::one_shot_all_reduce_kernel<float, 16, 8, false>(": "all_reduce",
    "void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(": "all_reduce",
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16, 8>(": "all_reduce",
    "void (anonymous namespace)::multimem_all_gather_kernel<16>(": "all_gather",
    "void (anonymous namespace)::reduce_scatter_kernel<c10::BFloat16, 16, 8>(": "reduce_scatter",
    "(anonymous namespace)::barrier_kernel(unsigned int**, int, int, int, size_t)": "barrier",
    "(anonymous namespace)::put_signal_kernel(unsigned int**, int, int, int)": "unknown",
    "(anonymous namespace)::wait_signal_kernel(unsigned int**, int, int, int)": "unknown",
    # custom all-reduce of vLLM and aiter
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": "all_reduce",
    "void aiter::cross_device_reduce_2stage<__half, 4>(aiter::RankData*)": "all_reduce",
    # TransformerEngine userbuffers
    "userbuffers_fp16_sum_inplace_gpu_rr_rs<4>(int, int)": "unknown",
    "kuserbuffers_pushsend(int*, int*, int4*, int4*)": "send",
    "kuserbuffers_pushrecv(int, int, int, int*)": "recv",
    # NVSHMEM, DeepEP, HCCL, UCC
    "void nvshmemi_transfer_allgather<char>(nvshmem_team_t)": "all_gather",
    "nvshmem_alltoallmem_kernel": "all_to_all",
    "allToAllV(void*, void*, long*, long*)": "all_to_all",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)": "all_to_all",
    "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*)": "all_to_all",
    "void deep_ep::internode::dispatch<false, 4, false, 16, 8192, 7>(int4*)": "all_to_all",
    "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)": "all_to_all",
    "void deep_ep::legacy::internode_ll::combine<true, 7168, 9, 128>(void*)": "all_to_all",
    "void deep_ep::hybrid_dispatch_impl<4, 8>(void*)": "all_to_all",
    "void deep_ep::intranode::notify_dispatch<8>(int const*, int*)": "unknown",
    "void deep_ep::intranode::cached_notify_combine<8>(void**, int*)": "unknown",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)": "unknown",
    "void deep_ep::barrier_impl<8>(int**)": "unknown",
    "hccl::allreduce_kernel": "all_reduce",
    "oneccl_allreduce_large_main<ccl_kernel_barrier_data, 8>": "all_reduce",
    "_ZTS27oneccl_reduce_scatter_smallIfLi8EE": "reduce_scatter",
    "_ZTSZZN3ccl2v139allreduce_sycl_rabenseifner_nonblockingIsEEN4sycl": "all_reduce",
    "typeinfo name for ccl::v1::reduce_scatter_ring_nonblocking_impl<short>(": "reduce_scatter",
    "oneccl_copy_data_internal<float>": "unknown",
    "HcclAllReduce": "all_reduce",
    "HcclAlltoAllV": "all_to_all",
    "HcclBatchSendRecv": "send_recv",
    "hcom_allReduce__363_0_1": "all_reduce",
    "hcom_reduceScatter__363_0_1": "reduce_scatter",
    "hcom_receive__363_2_1": "recv",
    "ucc_reduce_scatter_kernel": "reduce_scatter",
}

COMPUTE_KERNELS = [
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, MeanOps<float>>>(",
    "void at::native::(anonymous namespace)::indexSelectSmallIndex<float, long, unsigned int, 2>(",
    "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 8, at::native::_cuda_>(",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<OpaqueType<4u>, 128, 1>(",
    "triton_red_fused_add_native_layer_norm_reduce_scatter_0",
    "triton_poi_fused_all_reduce_wait_tensor_1",
    "triton_per_fused__to_copy_mean_all_gather_into_tensor_2",
    "void cub::DeviceReduceSingleTileKernel<cub::DeviceReducePolicy<float>, float*>(",
    "void cub::CUB_200200_800_NS::DeviceReduceKernel<policy, float const*, reduce_scatter_op>(",
    "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long>>(",
    "void thrust::cuda_cub::core::_kernel_agent<__reduce::ReduceAgent<all_gather>>(",
    "void moe_dispatch_kernel<float, 128>(float*, int*)",
    "void combine_kernel<8>(float*)",
    "void fused_moe::expert_dispatch_combine<reduce_scatter_tag>(float*)",
    "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64>>(",
    "void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128>, 4, 7, true>(",
    "void splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16>(",
    "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1",
    "void at::native::broadcast_coalesced_kernel<float>(float*)",
    "void embedding_bag_sendrecv_sum<float>(float*)",
    "Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x128x64",
    "barrier_free_kernel(float*)",
    "my_reduce_scatter_kernel_cpu_fallback",
    "acme::symmetric_reduce_scatter_helper(float*)",
    "",
]


@pytest.mark.parametrize(("name", "operation"), COMMUNICATION_KERNELS.items())
def test_communication_kernels(name: str, operation: str) -> None:
    assert of_kernel_name(name) == operation


@pytest.mark.parametrize("name", COMPUTE_KERNELS)
def test_compute_kernels_that_sound_alike(name: str) -> None:
    assert of_kernel_name(name) is None


RECORDED = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "_allgather_base": "all_gather",
    "all_gather": "all_gather",
    "all_gather_single": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all",
    "broadcast": "broadcast",
    "_broadcast_oop": "broadcast",
    "reduce": "reduce",
    "_reduce_oop": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "nccl:all_reduce": "all_reduce",
    "nccl:_all_gather_base": "all_gather",
    "nccl:all_to_all": "all_to_all",
    "nccl:send 0->1": "send",
    "nccl:recv 0<-1": "recv",
    "gloo:all_reduce": "all_reduce",
    "c10d::alltoall_base_": "all_to_all",
    "c10d::_allgather_base_": "all_gather",
    "c10d::recv_any_source_": "recv",
    "nccl:coalesced": None,
    "wait": None,
    "init": None,
    "": None,
}  # fmt: skip


@pytest.mark.parametrize(("name", "operation"), RECORDED.items())
def test_recorded_names(name: str, operation: str | None) -> None:
    assert canonical(name) == operation


def test_codes_are_the_places_in_the_list() -> None:
    assert [OPERATIONS[CODE[name]] for name in OPERATIONS] == list(OPERATIONS)
    assert len(set(OPERATIONS)) == len(OPERATIONS)
