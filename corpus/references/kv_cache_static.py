"""A cache of fixed size: a prefill, then decode steps that write the slot read from a tensor and attend to all so far.

What the cache holds where nothing was written yet is large, so that a query which sees it shows.
"""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, HEADS, SLOTS, WIDTH, UNWRITTEN = 2, 2, 12, 16, 64.0


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.full((BATCH, HEADS, SLOTS, WIDTH), UNWRITTEN))
        self.register_buffer("values", torch.full((BATCH, HEADS, SLOTS, WIDTH), UNWRITTEN))

    def forward(self, query, key, value, position):
        start = position[0].item()
        end = start + query.shape[2]
        self.keys[:, :, start:end] = key
        self.values[:, :, start:end] = value
        sees = torch.arange(end)[None, :] <= position[:, None]
        return F.scaled_dot_product_attention(query, self.keys[:, :, :end], self.values[:, :, :end], attn_mask=sees)


def inputs(seed, positions):
    generator = torch.Generator().manual_seed(seed)
    tokens = (torch.randn(BATCH, HEADS, len(positions), WIDTH, generator=generator) for _ in range(3))
    return (*tokens, torch.tensor(positions))


def make():
    return Decoder().eval(), inputs(0, range(5))


CALLS = [inputs(1, [5]), inputs(2, [6]), inputs(3, [7, 8])]


def reference(calls):
    from _attention_variants import KVCache, attend

    empty = calls[0][0].new_full((BATCH, HEADS, SLOTS, WIDTH), UNWRITTEN)
    cache, outputs = KVCache(empty, empty, (0,) * BATCH), []
    for query, key, value, _ in calls:
        output, cache = attend(cache, query, key, value)
        outputs.append(output)
    return outputs, {"keys": cache.keys, "values": cache.values}
