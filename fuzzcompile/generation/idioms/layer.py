"""Modules from (B, T, C) to (B, T, C) that stand in the place of the attention, each written out whole."""

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.registry import Idiom, PartTraits, part_idiom, register
from fuzzcompile.generation.spec import CaseSpec, Choices, Part

_POINTWISE = ("add", "sub", "mul", "div", "relu", "tanh", "sigmoid", "clamp", "nan_to_num", "detach", "dropout")


@part_idiom("layer", 3, PartTraits(own_strides=True))
def multihead_attention(pen: Pen) -> Choices:
    """nn.MultiheadAttention: weights asked for or not, causal, with a key padding mask."""
    return {
        "mask": pen.one_of(("none", "causal", "padding", "float")),
        "weights": pen.chance(30),
        "bias": not pen.chance(30),
    }


@part_idiom("layer", 3)
def encoder_layer(pen: Pen) -> Choices:
    """nn.TransformerEncoderLayer, norm first or last, ReLU or GELU, causal or not."""
    return {
        "first": pen.chance(50),
        "activation": pen.one_of(("relu", "gelu")),
        "causal": pen.chance(30),
    }


register(Idiom("decoder_layer", "layer", "nn.TransformerDecoderLayer over the tokens and a shifted copy of them."))


@part_idiom("layer", 3)
def prefix_dense(pen: Pen) -> Choices:
    """PrefixLM over packed sequences as one masked attention: all see the prefix, later tokens only earlier ones."""
    return {"by": pen.one_of(("fill", "where", "sdpa"))}


@part_idiom("layer", 2, PartTraits(fixes=("sequence",), graph_break=True))
def prefix_looped(pen: Pen) -> Choices:
    """PrefixLM over packed sequences in a Python loop over their lengths, which breaks the graph."""
    return {"lengths": pen.one_of(("list", "tensor"))}


def _static_with_gradient(part: Part, spec: CaseSpec) -> Part:
    """Tensors that a gradient needs may not be overwritten."""
    if spec.backward and part["write"] != "select_scatter":
        part = part.having(write="slice_scatter")
    return part.having(kept=False) if part["kept"] and (spec.backward or spec.compile.grad) else part


@part_idiom("layer", 4, PartTraits(fixes=("batch", "sequence"), fit=_static_with_gradient, autocast=False))
def cache_static(pen: Pen) -> Choices:
    """A key-value cache of fixed size: a prefill, then steps that write one position and attend to all so far."""
    return {
        "write": pen.one_of(("assign", "index_copy", "slice_scatter", "index_put", "select_scatter")),
        "steps": pen.one_of((1, 2)),
        "kept": pen.chance(40),
    }


@part_idiom("layer", 2, PartTraits(autocast=False))
def cache_growing(pen: Pen) -> Choices:
    """A key-value cache that grows by torch.cat: a prefill, then decode steps."""
    return {"steps": pen.one_of((1, 2))}


@part_idiom("layer", 2, PartTraits(fixes=("batch",), autocast=False))
def cache_rolling(pen: Pen) -> Choices:
    """A key-value cache of the last few tokens, moved on by torch.cat or torch.roll at each step."""
    return {"move": pen.one_of(("cat", "roll")), "window": pen.one_of((2, 3))}


@part_idiom("layer", 2)
def linear_attention(pen: Pen) -> Choices:
    """Causal linear attention: cumulative sums of outer products of keys and values."""
    return {"feature": pen.one_of(("elu", "relu", "softmax"))}


@part_idiom("layer", 2)
def convolution(pen: Pen) -> Choices:
    """A gated depthwise convolution over time, padded to the left, as in Conformer and Mamba."""
    return {"gated": pen.chance(50), "kernel": pen.one_of((2, 3))}


@part_idiom("layer", 5)
def dense(pen: Pen) -> Choices:
    """One linear layer over the features, activated or not."""
    return {"activation": pen.one_of(("none", "gelu", "relu"))}


@part_idiom("layer", 2)
def dense_int8(pen: Pen) -> Choices:
    """A linear layer of int8 weights: cast to the activation's dtype, or with a rounded activation, both scaled."""
    return {"by": pen.one_of(("cast", "product")), "bias": pen.chance(40)}


@part_idiom("layer", 3)
def convolution_2d(pen: Pen) -> Choices:
    """A two-dimensional convolution over the tokens, normalised in batches, joined with another one, activated."""
    return {
        "norm": pen.chance(50),
        "joined": pen.chance(40),
        "activation": pen.one_of(("none", "relu", "gelu")),
    }


@part_idiom("layer", 5, PartTraits(stirs=("equal_operators", "shared_input_linears")))
def parallel_linears(pen: Pen) -> Choices:
    """Several linear layers over parts of the features or over the same ones, activated and joined."""
    return {
        "count": pen.one_of((2, 3, 4)),
        "over": pen.one_of(("same", "chunks")),
        "activation": pen.one_of(("none", "relu", "tanh", "sigmoid")),
        "join": pen.one_of(("sum", "cat", "stack")),
        "bias": not pen.chance(40),
    }


@part_idiom("layer", 3, PartTraits(stirs=("equal_operators",)))
def parallel_norms(pen: Pen) -> Choices:
    """A LayerNorm for each of several parts of the features, joined again."""
    return {"count": pen.one_of((2, 3, 4)), "affine": not pen.chance(30)}


@part_idiom("layer", 6, PartTraits(stirs=("equal_operators",), uneven=True))
def parallel_pointwise(pen: Pen) -> Choices:
    """The same pointwise operator on several pairs of parts of the features, joined by cat or stack."""
    return {
        "operator": pen.one_of(_POINTWISE),
        "count": pen.one_of((2, 3, 4)),
        "join": pen.one_of(("cat", "stack")),
        "uneven": False,
    }


@part_idiom("layer", 8, PartTraits(stirs=("rejoined_parts",)))
def regrouped(pen: Pen) -> Choices:
    """Features cut into parts by split, chunk or unbind and put together again by cat or stack, in some order."""
    return {
        "cut": pen.one_of(("split", "chunk", "unbind", "split_twice", "slices")),
        "order": pen.one_of(("same", "reversed", "some")),
        "join": pen.one_of(("cat", "stack", "stack_first")),
        "between": pen.one_of(("nothing", "relu", "reshape", "squeeze")),
    }


register(Idiom("attention_pooled", "layer", "Tokens attend to a few learned queries, and are rebuilt from those."))
register(Idiom("attention_local", "layer", "Attention within blocks of tokens: padded, unfolded to windows, and back."))


@part_idiom("layer", 3, PartTraits(recalled=True))
def recompiled(pen: Pen) -> Choices:
    """A layer that depends on a Python number of its own, which grows from call to call: guards, symbolic numbers."""
    return {
        "by": pen.one_of(("factor", "fraction", "rolled", "flag", "none", "dtype", "size", "compared", "axis")),
        "first": pen.one_of((0, 1, 2)),
    }
