"""PrefixLM in bfloat16 with grouped heads and an additive mask, called with other sequences in the same buffers."""

import torch
from torch import nn

TOKENS, HEADS, KEY_HEADS, WIDTH = 16, 4, 2, 16


class PrefixAttention(nn.Module):
    def forward(self, query, key, value, offsets, prefixes):
        outputs = []
        for start, end, prefix in zip(offsets[:-1].tolist(), offsets[1:].tolist(), prefixes.tolist()):
            q = query[start:end].transpose(0, 1)
            k, v = (t[start:end].transpose(0, 1).repeat_interleave(HEADS // KEY_HEADS, 0) for t in (key, value))
            mask = torch.full((end - start, end - start), float("-inf"), dtype=q.dtype).triu(1)
            mask[:, :prefix] = 0.0
            weights = (q @ k.transpose(1, 2) * WIDTH**-0.5 + mask).float().softmax(-1).to(q.dtype)
            outputs.append((weights @ v).transpose(0, 1))
        return torch.cat(outputs)


def inputs(seed, offsets, prefixes):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(TOKENS, heads, WIDTH) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    packed = (torch.randn(shape, generator=generator).bfloat16() for shape in shapes)
    return (*packed, torch.tensor(offsets), torch.tensor(prefixes))


def make():
    return PrefixAttention().eval(), inputs(2, [0, 9, 16], [4, 0])


CALLS = [inputs(3, [0, 3, 7, 16], [1, 4, 12])]


def reference(calls):
    from _attention_variants import prefix_lm

    return [prefix_lm(*inputs) for inputs in calls], {}
