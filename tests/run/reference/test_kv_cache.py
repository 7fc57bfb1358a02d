"""The key-value cache reference against attention over the whole history, token by token; mistakes it must show."""

from __future__ import annotations

import math

import pytest
import torch
from _attention_variants import KVCache, attend, held, visible, written
from torch.nn.attention.flex_attention import create_mask
from torch.nn.functional import scaled_dot_product_attention

UNWRITTEN = 64.0
# Layout, slots and window; None slots: none to begin with.
CACHES = {
    "static": ("static", 16, None),
    "static window": ("static", 16, 3),
    "appended": ("appended", 0, None),
    "appended window": ("appended", 0, 4),
    "ring": ("ring", 4, 4),
    "ring larger than its window": ("ring", 6, 3),
    "shifted": ("shifted", 4, 4),
    "ring without the query's own slot": ("ring", 3, 4),
}
# Tokens of the calls: prefill and decode, a prefill beyond a window, chunks, single tokens past every wrap.
CALLS = {"decode": (3, 1, 1, 1), "long": (9, 1, 2), "chunks": (2, 5, 4), "single": (1,) * 10}


def empty(kind, *, batch=2, heads=2, width=4, dtype=torch.float64, tokens=None):
    layout, slots, window = CACHES[kind]
    fill = torch.full((batch, heads, slots, width), UNWRITTEN, dtype=dtype)
    return KVCache(fill, fill.clone(), tokens or (0,) * batch, layout, window)


def history(total, *, batch=2, heads=2, key_heads=2, width=4, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, count, total, width) for count in (heads, key_heads, key_heads)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def fed(cache, tokens, calls, **options):
    outputs, start = [], 0
    for length in calls:
        output, cache = attend(cache, *(tensor[:, :, start : start + length] for tensor in tokens), **options)
        outputs.append(output)
        start += length
    return torch.cat(outputs, 2), cache


def by_hand(query, key, value, window, scale=None):
    """One query at a time over the keys of its own history."""
    scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    group, outputs = query.size(1) // key.size(1), torch.empty(*query.shape[:3], value.size(-1), dtype=query.dtype)
    for batch in range(query.size(0)):
        for head in range(query.size(1)):
            for position in range(query.size(2)):
                first = 0 if window is None else max(0, position - window + 1)
                keys, values = (t[batch, head // group, first : position + 1] for t in (key, value))
                powers = (scale * (keys * query[batch, head, position]).sum(-1)).exp()
                outputs[batch, head, position] = (powers[:, None] * values).sum(0) / powers.sum()
    return outputs


@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("kind", CACHES)
def test_attention_through_a_cache_is_attention_over_the_history(kind, calls):
    tokens = history(sum(calls), heads=4)
    output, cache = fed(empty(kind), tokens, calls, scale=0.6)
    torch.testing.assert_close(output, by_hand(*tokens, CACHES[kind][2], 0.6), rtol=0, atol=1e-13)
    assert cache.tokens == (sum(calls),) * 2


@pytest.mark.parametrize("window", [None, 1, 4])
def test_sdpa_and_flex_attentions_mask_agree(window):
    tokens = history(7)
    positions = torch.arange(7).expand(2, 7)
    seen = visible(positions, positions, window)
    expected = create_mask(
        lambda b, h, q, k: (q >= k) & (q - k < (window or 99)), B=2, H=None, Q_LEN=7, KV_LEN=7, device="cpu"
    )
    assert torch.equal(seen, expected.squeeze(1))
    dense = scaled_dot_product_attention(*tokens, attn_mask=seen.unsqueeze(1))
    output, _ = fed(KVCache(*(t[:, :, :0] for t in tokens[1:]), (0, 0), "appended", window), tokens, (4, 1, 2))
    torch.testing.assert_close(output, dense, rtol=0, atol=1e-14)


@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("kind", CACHES)
def test_every_write_lands_in_its_slot_and_nowhere_else(kind, calls):
    _, keys, values = history(sum(calls), dtype=torch.bfloat16)
    cache = empty(kind, dtype=torch.bfloat16)
    for start, length in zip([sum(calls[:n]) for n in range(len(calls))], calls, strict=True):
        before = cache.keys.clone(), cache.values.clone()
        after = written(cache, *(tensor[:, :, start : start + length] for tensor in (keys, values)))
        assert torch.equal(cache.keys, before[0]) and torch.equal(cache.values, before[1])
        cache = after
    layout, slots, window = CACHES[kind]
    total = sum(calls)
    for stored, given in ((cache.keys, keys), (cache.values, values)):
        expected = torch.full((2, 2, slots, 4), UNWRITTEN, dtype=torch.bfloat16)
        if layout == "appended":
            expected = given if window is None else given[:, :, max(0, total - window + 1) :]
        elif layout == "shifted":
            expected = torch.cat((given[:, :, -slots:], expected), 2)[:, :, :slots]
        else:
            for position in range(total):
                expected[:, :, position % slots] = given[:, :, position]
        assert torch.equal(stored, expected)


def test_which_positions_slots_hold():
    assert held("static", [0, 3], 4).tolist() == [[-1] * 4, [0, 1, 2, -1]]
    assert held("appended", [3], 3).tolist() == [[0, 1, 2]]
    assert held("appended", [9], 3).tolist() == [[6, 7, 8]]
    assert held("ring", [0, 2, 4, 5, 11], 4).tolist() == [
        [-1] * 4,
        [0, 1, -1, -1],
        [0, 1, 2, 3],
        [4, 1, 2, 3],
        [8, 9, 10, 7],
    ]
    assert held("shifted", [2, 4, 6], 4).tolist() == [[0, 1, -1, -1], [0, 1, 2, 3], [2, 3, 4, 5]]


@pytest.mark.parametrize("kind", ["static", "ring", "shifted"])
def test_rows_at_positions_of_their_own(kind):
    alone = []
    starts, tokens = (0, 3, 6), history(8, batch=3)
    for row, start in enumerate(starts):
        own = [tensor[row : row + 1] for tensor in tokens]
        _, cache = fed(empty(kind, batch=1), [tensor[:, :, :start] for tensor in own], (start,))
        alone.append((cache, [tensor[:, :, start : start + 2] for tensor in own]))
    together = [torch.cat([parts[n] for _, parts in alone]) for n in range(3)]
    stored = (torch.cat([getattr(cache, name) for cache, _ in alone]) for name in ("keys", "values"))
    cache = KVCache(*stored, starts, *CACHES[kind][::2])
    output, after = attend(cache, *together)
    for row, (single, parts) in enumerate(alone):
        expected, alone_after = attend(single, *parts)
        torch.testing.assert_close(output[row : row + 1], expected, rtol=0, atol=1e-14)
        assert torch.equal(after.keys[row : row + 1], alone_after.keys)


def test_what_a_slot_holds_that_was_never_written_reaches_no_output():
    cache = empty("static")
    cache.keys.fill_(math.nan)
    cache.values.fill_(math.inf)
    output, after = attend(cache, *history(3))
    assert output.isfinite().all()
    assert after.keys[:, :, 3:].isnan().all()


@pytest.mark.parametrize("kind", ["static", "appended", "ring", "shifted"])
def test_gradients_reach_back_through_the_cache(kind):
    tokens = [tensor.requires_grad_() for tensor in history(6, batch=1, heads=2, key_heads=1, width=2)]
    cache = empty(kind, batch=1, heads=1, width=2)
    assert torch.autograd.gradcheck(lambda *given: fed(cache, given, (3, 1, 2))[0], tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_is_right_to_its_own_rounding(dtype):
    tokens = history(9, heads=4, dtype=dtype)
    output, _ = fed(empty("ring", dtype=dtype), tokens, (5, 1, 3))
    exact = by_hand(*(tensor.double() for tensor in tokens), 4)
    ulps = 0.5 if dtype != torch.float32 else 8
    assert output.dtype == dtype
    bound = ulps * torch.finfo(dtype).eps * exact.abs().clamp_min(1.0) + 1e-6 * (ulps < 1)
    assert ((output.double() - exact).abs() <= bound).all()


# -- mistakes of a cache: each shows in what is stored or in what comes out --------------------------


def stepwise(calls, *, late=0, modulo=4, sees_older=0, forgets_oldest=0):
    """A ring of 4 in plain Python with one of the mistakes, or none: its outputs, and the keys that it ends with."""
    query, key, value = history(sum(calls), dtype=torch.float32)
    keys, values = (torch.full((2, 2, 8, 4), UNWRITTEN) for _ in range(2))
    outputs = []
    for position in range(sum(calls)):
        slot = (position + late) % modulo
        keys[:, :, slot], values[:, :, slot] = key[:, :, position], value[:, :, position]
        span = range(max(0, position - 3 - sees_older + forgets_oldest), position + 1)
        slots = [p % 4 for p in span]
        q = query[:, :, position : position + 1]
        outputs.append(scaled_dot_product_attention(q, keys[:, :, slots], values[:, :, slots]))
    return torch.cat(outputs, 2), keys[:, :, :4]


def apart(**mistake):
    outputs, keys = stepwise((6, 1, 1), **mistake)
    expected, cache = fed(empty("ring", dtype=torch.float32), history(8, dtype=torch.float32), (6, 1, 1))
    return float((outputs - expected).abs().max()), torch.equal(keys, cache.keys)


def test_a_ring_in_plain_python_is_right():
    error, exact = apart()
    assert error <= 5e-7 and exact


@pytest.mark.parametrize("mistake", [{"late": 1}, {"modulo": 5}, {"modulo": 3}, {"late": 3}], ids=str)
def test_a_write_in_a_wrong_slot_shows_in_both(mistake):
    error, exact = apart(**mistake)
    assert error > 1e-2 and not exact


@pytest.mark.parametrize("mistake", [{"sees_older": 1}, {"forgets_oldest": 1}], ids=str)
def test_a_window_off_by_one_shows_in_the_output_alone(mistake):
    error, exact = apart(**mistake)
    assert error > 1e-2 and exact


def test_a_write_of_other_bits_shows():
    _, keys, values = history(2, dtype=torch.float32)
    cache = written(empty("static", dtype=torch.float32), keys, values)
    through_half = empty("static", dtype=torch.float32).keys
    through_half[:, :, :2] = keys.bfloat16()
    assert not torch.equal(cache.keys, through_half)


# -- what makes no sense ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "slots", "window", "tokens", "message"),
    [
        ("static", 4, None, (5, 0), "5 tokens do not fit into a static cache of 4"),
        ("static", 4, None, (1,), "as many numbers of tokens"),
        ("static", 4, 0, (1, 1), "window 0 is less than 1"),
        ("ring", 4, None, (1, 1), "ring cache of 4 slots needs a window of at most 5"),
        ("shifted", 4, 6, (1, 1), "shifted cache of 4 slots needs a window of at most 5"),
        ("appended", 2, None, (2, 1), "same number of tokens"),
        ("appended", 2, None, (3, 3), "of 3 tokens does not have 2 slots"),
    ],
)
def test_a_cache_that_makes_no_sense_is_refused(layout, slots, window, tokens, message):
    fill = torch.zeros(2, 1, slots, 4)
    with pytest.raises(ValueError, match=message):
        KVCache(fill, fill, tokens, layout, window)


def test_tokens_and_heads_that_do_not_fit_are_refused():
    _, keys, values = history(17)
    with pytest.raises(ValueError, match="17 tokens do not fit"):
        written(empty("static"), keys, values)
    with pytest.raises(ValueError, match="3 heads of the query are no multiple of 2"):
        attend(empty("static"), *history(1, heads=3))
