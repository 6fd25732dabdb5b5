"""Kernels are told apart by name, and their times add up."""

from __future__ import annotations

import pytest
import torch

from benchmarks.profile import KINDS, REST, kind_of, profile_step


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_256x128_64x4_2x1_v_bz_coopB_NNT", "products"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", "products"),
        ("sm90_xmma_gemm_bf16f32_bf16f32_f32_nt_n", "products"),
        ("void cublasLt::splitKreduce_kernel<32, 16>", "products"),
        ("aten::bmm", "products"),
        ("aten::baddbmm", "products"),
        ("aten::addmm", "products"),
        ("aten::mm", "products"),
        ("mkldnn::_linear_pointwise", "products"),
        ("_attention_backward", "attention"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "attention"),
        ("_residual_norm", "norms and GELU"),
        ("_inject_norm", "norms and GELU"),
        ("_norm_backward", "norms and GELU"),
        ("_boundary_backward", "norms and GELU"),
        ("_input_backward", "norms and GELU"),
        ("_gelu_forward", "norms and GELU"),
        ("aten::native_layer_norm_backward", "norms and GELU"),
        ("_adamw", "AdamW"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
        ("aten::copy_", "copies"),
        ("void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>", "copies"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig", "copies"),
        ("aten::sum", REST),
        ("void at::native::reduce_kernel<512, 1>", REST),
    ],
)
def test_a_kernel_belongs_to_one_kind(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_times_add_up() -> None:
    a = torch.randn(64, 64)
    found = profile_step(lambda: torch.nn.functional.gelu(a @ a), torch.device("cpu"))
    assert list(found["ms"]) == [*KINDS, REST]
    assert found["busy_ms"] == pytest.approx(sum(found["ms"].values()))
    assert found["ms"]["products"] > 0 < found["ms"]["norms and GELU"]
    assert found["ms"]["attention"] == 0
    assert found["launches"] >= 2
