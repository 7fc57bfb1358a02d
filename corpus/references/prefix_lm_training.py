"""PrefixLM in training: a loop over `tolist()` of the lengths, SDPA with a mask of its own for each sequence."""

import torch
import torch.nn.functional as F
from torch import nn

LENGTHS, PREFIXES = [7, 3, 6], [4, 0, 6]
BACKWARD = True


class PrefixAttention(nn.Module):
    def forward(self, query, key, value, lengths, prefixes):
        outputs, start = [], 0
        for length, prefix in zip(lengths.tolist(), prefixes.tolist()):
            q, k, v = (tensor[start : start + length].transpose(0, 1) for tensor in (query, key, value))
            position = torch.arange(length, device=query.device)
            sees = (position[None, :] < prefix) | (position[None, :] <= position[:, None])
            outputs.append(F.scaled_dot_product_attention(q, k, v, attn_mask=sees).transpose(0, 1))
            start += length
        return torch.cat(outputs)


def make():
    generator = torch.Generator().manual_seed(1)
    packed = (torch.randn(sum(LENGTHS), 2, 16, generator=generator).requires_grad_() for _ in range(3))
    return PrefixAttention().train(), (*packed, torch.tensor(LENGTHS), torch.tensor(PREFIXES))


def reference(calls):
    from _attention_variants import prefix_lm

    return [prefix_lm(*packed, [0, *lengths.cumsum(0)], prefixes) for *packed, lengths, prefixes in calls], {}
