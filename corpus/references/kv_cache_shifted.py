"""A sliding window that shifts: full, it moves its slots by one and writes the last, through a function of the state."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, HEADS, WINDOW, WIDTH, UNWRITTEN = 2, 2, 4, 16, 64.0


def append(cache, token, filled):
    if filled < cache.shape[2]:
        cache[:, :, filled : filled + 1] = token
    else:
        cache.copy_(torch.cat((cache[:, :, 1:], token), 2))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.full((BATCH, HEADS, WINDOW, WIDTH), UNWRITTEN))
        self.register_buffer("values", torch.full((BATCH, HEADS, WINDOW, WIDTH), UNWRITTEN))

    def forward(self, query, key, value, position):
        filled = int(position)
        append(self.keys, key, filled)
        append(self.values, value, filled)
        held = min(filled + 1, WINDOW)
        return F.scaled_dot_product_attention(query, self.keys[:, :, :held], self.values[:, :, :held])


def inputs(position):
    generator = torch.Generator().manual_seed(position)
    tokens = (torch.randn(BATCH, HEADS, 1, WIDTH, generator=generator) for _ in range(3))
    return (*tokens, torch.tensor(position))


def make():
    return Decoder().eval(), inputs(0)


CALLS = [inputs(position) for position in range(1, 7)]


def reference(calls):
    from _attention_variants import KVCache, attend

    empty = calls[0][0].new_full((BATCH, HEADS, WINDOW, WIDTH), UNWRITTEN)
    cache, outputs = KVCache(empty, empty, (0,) * BATCH, "shifted", WINDOW), []
    for query, key, value, _ in calls:
        output, cache = attend(cache, query, key, value)
        outputs.append(output)
    return outputs, {"keys": cache.keys, "values": cache.values}
