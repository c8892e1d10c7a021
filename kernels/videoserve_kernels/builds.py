"""Ahead-of-time builds: every Triton kernel at the shapes that count, for the cards we serve, without any card."""

import torch

from videoserve_kernels import (
    drift_kernel,
    flash,
    gemm_kernel,
    indexer_kernel,
    low_rank_kernel,
    modulate_kernel,
    moe_kernel,
    norm_kernel,
    paged_kernel,
    quant_kernel,
    sparse_kernel,
    streams_kernel,
)
from videoserve_kernels.build import Build
from videoserve_kernels.masks import MASK_BLOCK

TARGETS = (89, 90, 120)
# Bytes of shared memory that one block may have.
SHARED_LIMIT = {89: 101376, 90: 232448, 120: 101376}
POINTER = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int8: "*i8", torch.float8_e4m3fn: "*fp8e4nv"}


def builds() -> list[Build]:
    """Every build: Wan-14B's shapes (40 heads of 128, C = 5120), and the options that change the code."""
    return [build for sm in TARGETS for build in builds_for(sm)]


def builds_for(sm: int) -> list[Build]:
    return [
        *flash_builds(sm), *quant_builds(sm), *drift_builds(sm), *norm_builds(sm), *modulate_builds(sm),
        *low_rank_builds(sm), *gemm_builds(sm), *paged_builds(sm),
        *sparse_builds(sm), *streams_builds(sm), *moe_builds(sm), *indexer_builds(sm),
    ]  # fmt: skip


def flash_builds(sm: int) -> list[Build]:
    strides = tuple(f"{tensor}_{axis}" for tensor in "qkvo" for axis in "bsn")
    found = []
    for head_dim, option, dtype in (
        (128, "", torch.bfloat16), (128, "causal", torch.bfloat16), (128, "bias", torch.bfloat16),
        (128, "window", torch.bfloat16), (128, "blocks", torch.bfloat16), (64, "causal", torch.bfloat16),
        (64, "window", torch.bfloat16), (32, "", torch.bfloat16), (128, "float32", torch.float32),
    ):  # fmt: skip
        size = flash.tiles(head_dim, dtype, sm)
        types = {
            **dict.fromkeys(("q", "k", "v", "out"), POINTER[dtype]), **dict.fromkeys(("bias", "lse", "sinks"), "*fp32"),
            **dict.fromkeys(("order", "counts"), "*i32"), "lengths": "*i64", "scale": "fp32",
        }  # fmt: skip
        causal = option in ("causal", "window")
        constants = {
            "HEAD_DIM": head_dim, "BLOCK_Q": size.queries, "BLOCK_K": size.keys, "CAUSAL": causal,
            "HAS_WINDOW": option == "window", "HAS_BIAS": option == "bias", "HAS_LENGTHS": causal,
            "HAS_SINKS": option == "window", "HAS_BLOCKS": option == "blocks", "BLOCK": MASK_BLOCK, "HAS_LSE": True,
        }  # fmt: skip
        found.append(Build(
            op="attend", shape=f"D{head_dim} {option}".strip(), sm=sm, kernel=flash.flash_kernel, types=types,
            constants=constants, warps=size.warps, stages=size.stages, aligned=strides,
            registers={32: 144, 64: 184, 128: 240}[head_dim], shared=SHARED_LIMIT[sm],
        ))  # fmt: skip
    return found


def quant_builds(sm: int) -> list[Build]:
    tile = {"BLOCK_S": quant_kernel.TOKENS, "BLOCK_D": 128}
    found = []
    for dtype, code in ((torch.int8, "int8"), (torch.float8_e4m3fn, "fp8")):
        types = {"codes": POINTER[dtype], "scales": "*fp32"}
        found += [
            Build(
                op="quantise_heads", shape=f"D128 {code}", sm=sm, kernel=quant_kernel.quantise_kernel,
                types={**types, "x": "*bf16", "largest": "fp32"}, constants={**tile, "WHOLE": dtype == torch.int8},
                warps=4, registers=64, shared=2048, aligned=("x_b", "x_s", "x_n", "channels"),
            ),
            Build(
                op="dequantise_heads", shape=f"D128 {code}", sm=sm, kernel=quant_kernel.dequantise_kernel,
                types={**types, "out": "*bf16"}, constants=tile, warps=4, registers=64, shared=4096,
                aligned=("o_b", "o_s", "o_n", "channels"),
            ),
        ]  # fmt: skip
    return found


def drift_builds(sm: int) -> list[Build]:
    return [
        Build(
            op="drift", shape="bf16 masked", sm=sm, kernel=drift_kernel.drift_kernel,
            types={"a": "*bf16", "b": "*bf16", "mask": "*i1", "parts": "*fp32"},
            constants={"HAS_MASK": True, "BLOCK_S": drift_kernel.TOKENS, "BLOCK_C": drift_kernel.CHANNELS},
            warps=8, registers=96, shared=1024, aligned=("a_b", "a_s", "b_b", "b_s", "channels"),
        )
    ]  # fmt: skip


def norm_builds(sm: int) -> list[Build]:
    types = {**dict.fromkeys(("x", "residual", "weight", "out", "total"), "*bf16"), "turns": "*fp32", "eps": "fp32"}
    found = [
        Build(
            op="add_rms_norm" if add else "rms_norm", shape="C5120", sm=sm, kernel=norm_kernel.rms_norm_kernel,
            types=types, constants={"ADD": add, "BLOCK": 8192}, warps=norm_kernel.warps(8192), registers=80,
            shared=1024, aligned=("x_s", "r_s", "channels"),
        )
        for add in (False, True)
    ]  # fmt: skip
    # Wan-14B, whose norm is over all heads; Qwen, over each; Llama, without one.
    for op, shape, heads, half, norm, halves in (
        ("rms_norm_rotate", "C5120", 64, 64, True, False), ("rms_norm_rotate", "D128 halves", 32, 64, True, True),
        ("rotate", "D64 halves", 32, 32, False, True),
    ):  # fmt: skip
        found.append(Build(
            op=op, shape=shape, sm=sm, kernel=norm_kernel.rotate_kernel, types=types,
            constants={"NORM": norm, "EACH": halves, "HALVES": halves, "BLOCK_N": heads, "BLOCK_H": half},
            warps=norm_kernel.warps(2 * heads * half), registers=80, shared=1024,
            aligned=("x_b", "x_s", "x_n", "half"),
        ))  # fmt: skip
    return found


def modulate_builds(sm: int) -> list[Build]:
    types = {
        **dict.fromkeys(("x", "y", "out"), "*bf16"), **dict.fromkeys(("shift", "scale", "gate"), "*fp32"),
        "frame_index": "*i64", "eps": "fp32",
    }  # fmt: skip
    strides = ("x_b", "x_s", "y_b", "y_s", "s_b", "s_k", "c_b", "c_k", "g_b", "g_k", "channels")
    return [
        Build(
            op=op, shape="C5120", sm=sm, kernel=kernel, types=types, constants={"BLOCK": 8192},
            warps=norm_kernel.warps(8192), registers=168, shared=33024, aligned=strides,
        )
        for op, kernel in (
            ("modulated_norm", modulate_kernel.modulated_norm_kernel),
            ("gated_residual", modulate_kernel.gated_residual_kernel),
        )
    ]  # fmt: skip


def low_rank_builds(sm: int) -> list[Build]:
    return [
        Build(
            op="add_low_rank", shape=f"R{rank} {option}".strip(), sm=sm, kernel=low_rank_kernel.low_rank_kernel,
            types={**dict.fromkeys(("y", "x", "a", "b"), "*bf16"), "slots": "*i32"},
            constants={
                "HAS_SLOTS": option == "slots", "BLOCK_M": low_rank_kernel.ROWS,
                "BLOCK_C": low_rank_kernel.CHANNELS, "BLOCK_R": rank,
            },
            warps=low_rank_kernel.warps(rank), registers=208, shared=SHARED_LIMIT[sm],
            aligned=("inputs", "outputs", "rank", "share"),
        )
        for rank, option in ((16, ""), (128, ""), (16, "slots"), (128, "slots"))
    ]  # fmt: skip


def gemm_builds(sm: int) -> list[Build]:
    found = []
    for name, dtype, block in (
        ("int8", torch.int8, 0), ("fp8", torch.float8_e4m3fn, 128), ("fp8/32", torch.float8_e4m3fn, 32),
    ):  # fmt: skip
        for rows in (16, 128):
            size = gemm_kernel.tiles(rows, block, sm)
            types = {
                "x": POINTER[dtype], "weight": POINTER[dtype], "bias": "*bf16", "out": "*bf16",
                "x_scales": "*fp32", "weight_scales": "*fp32",
            }  # fmt: skip
            constants = {
                "SCALED": block > 0, "HAS_BIAS": True,
                "BLOCK_M": size.rows, "BLOCK_N": size.columns, "BLOCK_K": size.depth, "GROUP": 8,
            }  # fmt: skip
            found.append(Build(
                op="scaled_linear", shape=f"M{rows} {name}", sm=sm, kernel=gemm_kernel.scaled_linear_kernel,
                types=types, constants=constants, warps=size.warps, stages=size.stages,
                registers={0: 248, 128: 192, 32: 200}[block], shared=SHARED_LIMIT[sm], aligned=("columns", "depth"),
            ))  # fmt: skip
    return found


def paged_builds(sm: int) -> list[Build]:
    """Query heads a key head, channels: SmolLM2, Llama and Qwen, and DeepSeek-V4 with its window and sinks."""
    found = []
    for group, channels, option in ((3, 64, ""), (8, 128, ""), (8, 128, "parts"), (64, 512, "window")):
        size = paged_kernel.tiles(group, channels)
        types = {
            **dict.fromkeys(("q", "keys", "values"), "*bf16"), **dict.fromkeys(("sinks", "lse"), "*fp32"),
            **dict.fromkeys(("tables", "rows", "positions"), "*i32"), "out": "*fp32" if option == "parts" else "*bf16",
            "scale": "fp32",
        }  # fmt: skip
        constants = {
            "PAGE": 64, "PART": paged_kernel.PART, "HAS_WINDOW": option == "window", "HAS_SINKS": option == "window",
            "BLOCK_N": size.heads, "BLOCK_K": size.keys, "BLOCK_D": channels,
        }  # fmt: skip
        found.append(Build(
            op="paged_attention", shape=f"D{channels} {option}".strip(), sm=sm, kernel=paged_kernel.paged_kernel,
            types=types, constants=constants, warps=size.warps, stages=size.stages, registers=168,
            shared=SHARED_LIMIT[sm], aligned=("q_t", "q_n", "k_b", "k_s", "k_n", "v_b", "v_s", "v_n", "channels"),
        ))  # fmt: skip
    found.append(Build(
        op="paged_attention", shape="join", sm=sm, kernel=paged_kernel.join_kernel,
        types={**dict.fromkeys(("parts", "sums", "lse"), "*fp32"), "out": "*bf16"},
        constants={"BLOCK_P": 32, "BLOCK_D": 128}, warps=4, registers=96, shared=4096, aligned=("channels",),
    ))  # fmt: skip
    pointers = ("k", "v", "keys", "values")
    strides = tuple(f"{name}_{axis}" for name in ("keys", "values") for axis in "bsn")
    found.append(Build(
        op="store_kv", shape="C1024", sm=sm, kernel=paged_kernel.store_kernel,
        types={**dict.fromkeys(pointers, "*bf16"), **dict.fromkeys(("tables", "rows", "positions"), "*i32")},
        constants={"PAGE": 64, "BLOCK": 1024}, warps=4, registers=64, shared=0,
        aligned=("k_t", "k_n", "v_t", "v_n", *strides, "channels"),
    ))  # fmt: skip
    return found


def sparse_builds(sm: int) -> list[Build]:
    """DeepSeek-V4: 64 heads of 512 over its window, and over a part of what lies far off."""
    size = paged_kernel.tiles(64, 512)
    found = []
    for option in ("window", "far"):
        types = {
            **dict.fromkeys(("q", "pool"), "*bf16"), **dict.fromkeys(("sinks", "out", "lse"), "*fp32"), "at": "*i64",
            "scale": "fp32",
        }  # fmt: skip
        constants = {
            "PART": sparse_kernel.PART, "HAS_SINKS": option == "window", "BLOCK_N": size.heads, "BLOCK_K": size.keys,
            "BLOCK_D": 512,
        }  # fmt: skip
        found.append(Build(
            op="sparse_attention", shape=f"D512 {option}", sm=sm, kernel=sparse_kernel.sparse_kernel, types=types,
            constants=constants, warps=size.warps, stages=size.stages, registers=120, shared=36864,
            aligned=("q_t", "q_n", "pool_l", "channels"),
        ))  # fmt: skip
    return found


def streams_builds(sm: int) -> list[Build]:
    """DeepSeek-V4: 4 streams of 4096 channels."""
    types = {
        **dict.fromkeys(("said", "bias", "scale", "post", "comb"), "*fp32"), "eps": "fp32", "norm_eps": "fp32",
        **dict.fromkeys(("streams", "x", "out", "new"), "*bf16"),
    }  # fmt: skip
    return [
        Build(
            op=op, shape="H4 C4096", sm=sm, kernel=kernel, types=types,
            constants={"BLOCK_H": 4, "BLOCK_C": streams_kernel.CHANNELS}, warps=4, registers=72, shared=8192,
            aligned=("o_t", "s_t", "s_h", "channels"),
        )
        for op, kernel in (("open_streams", streams_kernel.open_kernel), ("close_streams", streams_kernel.close_kernel))
    ]  # fmt: skip


def moe_builds(sm: int) -> list[Build]:
    """DeepSeek-V4: 256 experts of 2048 over 4096 channels, for few picks an expert and for many."""
    found = []
    for picks in (256, 65536):
        size = moe_kernel.tiles(picks, 256)
        types = {
            **dict.fromkeys(("x", "gate_up", "grown", "down", "made"), "*bf16"), "limit": "fp32",
            **dict.fromkeys(("order", "ends", "experts", "firsts"), "*i64"), "w_e": "i64",
        }  # fmt: skip
        for part, kernel in (("up", moe_kernel.gate_up_kernel), ("down", moe_kernel.down_kernel)):
            found.append(Build(
                op="run_experts", shape=f"M{size.picks} {part}", sm=sm, kernel=kernel, types=types,
                constants={"BLOCK_M": size.picks, "BLOCK_N": size.columns, "BLOCK_K": size.depth},
                warps=size.warps, stages=size.stages, registers=176, shared=SHARED_LIMIT[sm],
                aligned=("x_t", "w_e", "w_n", "channels", "hidden"),
            ))  # fmt: skip
    return found


def indexer_builds(sm: int) -> list[Build]:
    """DeepSeek-V4: 64 heads of 128."""
    types = {
        **dict.fromkeys(("q", "keys"), "*bf16"), **dict.fromkeys(("weights", "scores"), "*fp32"),
        **dict.fromkeys(("places", "rows", "seen"), "*i64"),
    }  # fmt: skip
    return [Build(
        op="top_entries", shape="H64 D128", sm=sm, kernel=indexer_kernel.score_kernel, types=types,
        constants={"BLOCK_H": 64, "BLOCK_E": indexer_kernel.ENTRIES, "BLOCK_D": 128}, warps=4, stages=1,
        registers=120, shared=32768, aligned=("q_t", "q_h", "w_t", "k_l", "channels"),
    )]  # fmt: skip
