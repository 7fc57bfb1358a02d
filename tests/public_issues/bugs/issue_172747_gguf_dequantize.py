"""pytorch#172747: GGUF dequantisation reads beyond a (n, 1) buffer when the width of the block is symbolic.

The functions are the report's; its driver was not in the stored text, so the two calls at the end are added.
Labels of the report: dynamic shapes, inductor. Said to be fixed since 2.12; still wrong here on 2.13 CPU.
Only Inductor with dynamic shapes is wrong; eager, aot_eager and aot_eager_decomp_partition are right.
At fault: lowering, expand of the broadcast multiply (ExpandView.make_reindexer in torch/_inductor/ir.py asks
whether a size is literally 1, where the rest of the lowering asks whether it is guarded to be 1;
found by changing that line, the thread names none)
"""

import torch

EXPECT = ("miscompile", "nonfinite")


def generate_blocks_bf16(n_blocks):
    data = torch.zeros((n_blocks, 2), dtype=torch.uint8)
    data[:, 0] = 0x80
    data[:, 1] = 0x3F
    return data


def generate_blocks_Q6_K(n_blocks):
    data = torch.zeros((n_blocks, 210), dtype=torch.uint8)
    data[:, 192:208] = 1
    data[:, 208] = 0x00
    data[:, 209] = 0x3C
    return data


def dequantize_blocks_BF16(blocks, dtype):
    return (blocks.view(torch.int16).to(torch.int32) << 16).view(torch.float32)


def split_block_dims(blocks, *args):
    n_max = blocks.shape[1]
    dims = list(args) + [n_max - sum(args)]
    xs = torch.split(blocks, dims, dim=1)
    return xs


def view_float16(x):
    return x.view(torch.float16)


def dequantize_blocks_Q6_K(blocks, dtype):
    QK_K = 256
    (ql, qh, scales, d) = split_block_dims(blocks, QK_K // 2, QK_K // 4, QK_K // 16)

    scales = scales.view(torch.int8).to(dtype)
    d = view_float16(d).to(dtype)
    d = d * scales
    return d


def dequantize(function, blocks, dtype):
    return function(blocks, dtype)


compiled = torch.compile(dequantize)
compiled(dequantize_blocks_BF16, generate_blocks_bf16(2), torch.float32)
out = compiled(dequantize_blocks_Q6_K, generate_blocks_Q6_K(2), torch.float32)
print("largest error:", (out - dequantize_blocks_Q6_K(generate_blocks_Q6_K(2), torch.float32)).abs().max().item())
