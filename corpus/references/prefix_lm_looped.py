"""PrefixLM over packed sequences: a loop over their lengths, softmax written out, the output in one buffer.

Zero prefix, prefix as long as the sequence and longer, sequences of one token and of none.
"""

import torch
from torch import nn

OFFSETS, PREFIXES = [0, 5, 6, 6, 13, 17], [2, 0, 3, 7, 9]


class PrefixAttention(nn.Module):
    def forward(self, query, key, value, offsets, prefixes):
        output = torch.zeros_like(query)
        for index in range(prefixes.numel()):
            start, end = offsets[index].item(), offsets[index + 1].item()
            length, prefix = end - start, prefixes[index].item()
            q, k, v = (tensor[start:end].transpose(0, 1) for tensor in (query, key, value))
            scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
            later = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
            later[:, :prefix] = False
            weights = scores.masked_fill(later, float("-inf")).softmax(-1)
            output[start:end] = (weights @ v).transpose(0, 1)
        return output


def make():
    generator = torch.Generator().manual_seed(0)
    packed = (torch.randn(OFFSETS[-1], 4, 16, generator=generator) for _ in range(3))
    return PrefixAttention().eval(), (*packed, torch.tensor(OFFSETS), torch.tensor(PREFIXES))


def reference(calls):
    from _attention_variants import prefix_lm

    return [prefix_lm(*inputs) for inputs in calls], {}
