"""A sliding window in a ring: a token goes to slot `position % window`, read with `.item()`; a prefill beyond the ring."""

import torch
from torch import nn

BATCH, HEADS, WINDOW, WIDTH, UNWRITTEN = 2, 2, 5, 16, 64.0


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.full((BATCH, HEADS, WINDOW, WIDTH), UNWRITTEN))
        self.register_buffer("values", torch.full((BATCH, HEADS, WINDOW, WIDTH), UNWRITTEN))
        self.register_buffer("written", torch.zeros((), dtype=torch.long))

    def forward(self, query, key, value):
        outputs = []
        for token in range(query.shape[2]):
            position = self.written.item()
            slot = position % WINDOW
            self.keys[:, :, slot] = key[:, :, token]
            self.values[:, :, slot] = value[:, :, token]
            self.written += 1
            held = min(position + 1, WINDOW)
            scores = query[:, :, token : token + 1] @ self.keys[:, :, :held].transpose(-2, -1) / WIDTH**0.5
            outputs.append(scores.softmax(-1) @ self.values[:, :, :held])
        return torch.cat(outputs, 2)


def inputs(seed, length):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(BATCH, HEADS, length, WIDTH, generator=generator) for _ in range(3))


def make():
    return Decoder().eval(), inputs(0, 3)


CALLS = [inputs(1, 1), inputs(2, 4), inputs(3, 1)]


def reference(calls):
    from _attention_variants import KVCache, attend

    empty = calls[0][0].new_full((BATCH, HEADS, WINDOW, WIDTH), UNWRITTEN)
    cache, outputs = KVCache(empty, empty, (0,) * BATCH, "ring", WINDOW), []
    for step in calls:
        output, cache = attend(cache, *step)
        outputs.append(output)
    return outputs, {"keys": cache.keys, "values": cache.values, "written": torch.tensor(cache.tokens[0])}
