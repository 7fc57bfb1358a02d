"""Rows of a batch that stand at positions of their own: a loop over the rows, grouped heads, one token a step."""

import torch
from torch import nn

BATCH, HEADS, KEY_HEADS, SLOTS, WIDTH, UNWRITTEN = 3, 4, 2, 9, 16, 64.0
HELD = [2, 0, 5]


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        keys, values = held()
        self.register_buffer("keys", keys)
        self.register_buffer("values", values)
        self.register_buffer("lengths", torch.tensor(HELD))

    def forward(self, query, key, value):
        outputs = []
        for row in range(query.shape[0]):
            slot = int(self.lengths[row])
            self.keys[row, :, slot], self.values[row, :, slot] = key[row, :, 0], value[row, :, 0]
            k, v = (cache[row, :, : slot + 1].repeat_interleave(HEADS // KEY_HEADS, 0) for cache in (self.keys, self.values))
            weights = torch.softmax(query[row] @ k.transpose(1, 2) / WIDTH**0.5, -1)
            outputs.append(weights @ v)
        self.lengths += 1
        return torch.stack(outputs)


def held():
    generator = torch.Generator().manual_seed(9)
    caches = [torch.randn(BATCH, KEY_HEADS, SLOTS, WIDTH, generator=generator) for _ in range(2)]
    for cache in caches:
        for row, count in enumerate(HELD):
            cache[row, :, count:] = UNWRITTEN
    return caches


def inputs(seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(BATCH, heads, 1, WIDTH, generator=generator) for heads in (HEADS, KEY_HEADS, KEY_HEADS))


def make():
    return Decoder().eval(), inputs(0)


CALLS = [inputs(1), inputs(2)]


def reference(calls):
    from _attention_variants import KVCache, attend

    cache, outputs = KVCache(*(tensor.to(calls[0][0].dtype) for tensor in held()), tuple(HELD)), []
    for step in calls:
        output, cache = attend(cache, *step)
        outputs.append(output)
    return outputs, {"keys": cache.keys, "values": cache.values, "lengths": torch.tensor(cache.tokens)}
