"""How large the errors newly made in a layer are, in units of its rounding noise: the numbers behind the tolerances.

    python bench/tolerances.py [--compile]

As in a profile, ``noise`` is the larger of two RMS errors of the reference's layer: against float64, and between two
runs of which one moves each operator by up to one unit in the last place. ``made`` is the RMS distance of the layer
run in the other way, on the same input. Printed are the largest ratio made / noise over the seeds, the largest
relative error made in units of eps, and the layers that gave them.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn import functional

from fuzzcompile.run.arithmetic_modes import UlpNoise
from fuzzcompile.run.attention_backends import force_kernel
from fuzzcompile.run.device import Numerics

WIDTH, INNER, HEADS, LENGTH, BATCH = 768, 3072, 12, 64, 2
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SEEDS = range(5)


class Attention(nn.Module):
    """Self-attention with projections; shape (batch, length, width)."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        heads = self.qkv(x).view(*x.shape[:2], 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*heads, is_causal=self.causal)
        return self.out(seen.transpose(1, 2).reshape(x.shape))


class Bare(nn.Module):
    """Attention without projections, on peaked scores."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        heads = x.view(*x.shape[:2], HEADS, WIDTH // HEADS).transpose(1, 2)
        return functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(x.shape)


class Gradient(nn.Module):
    """The gradient of a layer's input, as a layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Forward and backward; the cotangent is the input."""
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(self.layer(leaf), leaf, x)[0]


def mlp() -> nn.Module:
    """Two linear layers and a GELU."""
    return nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH))


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear 768x3072": lambda: nn.Linear(WIDTH, INNER),
    "linear 3072x768": lambda: nn.Sequential(nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "rms norm": lambda: nn.RMSNorm(WIDTH),
    "softmax": lambda: nn.Softmax(-1),
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "mlp": mlp,
    "attention": Attention,
    "attention, causal": functools.partial(Attention, causal=True),
    "attention, bare": Bare,
    "block": lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, 0.0, "gelu", batch_first=True, norm_first=True),
}
ATTENTION = ("attention", "attention, causal", "attention, bare", "block")


def rms(tensor: torch.Tensor) -> float:
    """Root mean square."""
    return float(tensor.detach().double().square().mean().sqrt())


def noise_of(layer: nn.Module, x: torch.Tensor, base: torch.Tensor, exact: torch.Tensor) -> float:
    """What rounding alone does to the layer: see above."""
    with UlpNoise(1):
        noisy = layer(x)
    return max(rms(noisy.double() - base.double()), rms(base.double() - exact))


def cases(names: tuple[str, ...], dtype: torch.dtype) -> Iterator[tuple[str, nn.Module, nn.Module, torch.Tensor]]:
    """Name, layer in the dtype, the same in float64, input."""
    for name in names:
        for seed in SEEDS:
            torch.manual_seed(seed)
            wide = LAYERS[name]().to(dtype).double().eval()
            x = torch.randn(BATCH, LENGTH, WIDTH).to(dtype)
            torch.manual_seed(seed)
            yield name, LAYERS[name]().to(dtype).eval(), wide, x


class Worst:
    """The largest ratios so far."""

    def __init__(self) -> None:
        self.ratio, self.made, self.element = (0.0, ""), (0.0, ""), (0.0, "")

    def add(self, name: str, made: torch.Tensor, base: torch.Tensor, noise: float, dtype: torch.dtype) -> None:
        """Take one pair of results in."""
        error, size, eps = made.double() - base.double(), rms(base), torch.finfo(dtype).eps
        self.ratio = max(self.ratio, (rms(error) / noise if noise else 0.0, name))
        self.made = max(self.made, (rms(error) / size / eps, name))
        self.element = max(self.element, (float(error.abs().max()) / size / eps, name))

    def print(self, pair: str, dtype: torch.dtype) -> None:
        """One line."""
        print(
            f"{pair:34} {str(dtype)[6:]:9} made/noise {self.ratio[0]:6.2f} ({self.ratio[1]})  "
            f"RMS {self.made[0]:8.2f} eps ({self.made[1]})  element {self.element[0]:8.2f} eps ({self.element[1]})",
            flush=True,
        )


def measure(pair: str, names: tuple[str, ...], dtype: torch.dtype, way: Callable[[nn.Module], nn.Module]) -> None:
    """Eager against ``way`` of the same layer in one dtype."""
    worst = Worst()
    for name, layer, wide, x in cases(names, dtype):
        with torch.no_grad():
            base, exact = layer(x), wide(x.double())
            worst.add(name, way(layer)(x), base, noise_of(layer, x, base, exact), dtype)
    worst.print(pair, dtype)


def across_kernels(dtype: torch.dtype, *, gradient: bool) -> None:
    """The math kernel against flash, whose noise counts."""
    worst = Worst()
    for name, layer, wide, x in cases(ATTENTION, dtype):
        layer, wide = (Gradient(layer), Gradient(wide)) if gradient else (layer, wide)
        with force_kernel("math"):
            base, exact = layer(x), wide(x.double())
        with force_kernel("flash"):
            made = layer(x)
        worst.add(name, made, base, noise_of(layer, x, base, exact), dtype)
    worst.print(f"math/flash{', gradient' if gradient else ''}", dtype)


class Reordered(torch.utils._python_dispatch.TorchDispatchMode):
    """Matrix products in another order of accumulation: terms permuted, added up in float32 in pieces of 32."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            return self._product(*args)
        if func is torch.ops.aten.addmm.default:
            wide = self._product(*args[1:], keep=True) + args[0].to(wider(args[0].dtype))
            return wide.to(args[0].dtype)
        return func(*args, **(kwargs or {}))

    def _product(self, a: torch.Tensor, b: torch.Tensor, keep: bool = False) -> torch.Tensor:
        order = torch.randperm(a.shape[-1], generator=torch.Generator().manual_seed(7))
        total = None
        for start in range(0, len(order), 32):
            picked = order[start : start + 32]
            part = a[..., picked].to(wider(a.dtype)) @ b[..., picked, :].to(wider(b.dtype))
            total = part if total is None else total + part
        return total if keep else total.to(a.dtype)


class TF32(torch.utils._python_dispatch.TorchDispatchMode):
    """float32 products of inputs rounded to TF32's 10 bits of mantissa (to nearest), accumulated in float32."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            args = tuple(map(tf32, args))
        elif func is torch.ops.aten.addmm.default:
            args = (args[0], tf32(args[1]), tf32(args[2]))
        return func(*args, **(kwargs or {}))


def tf32(tensor: torch.Tensor) -> torch.Tensor:
    """float32 values that TF32 holds, rounded to nearest even."""
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def wider(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which products are added up."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def under(
    mode: Callable[[], AbstractContextManager[object]], layer: nn.Module
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The layer, run under the mode."""

    def run(x: torch.Tensor) -> torch.Tensor:
        with mode(), force_kernel("math"):  # the flash kernel is one operator, into which no mode reaches
            return layer(x)

    return run


def across_dtypes(dtype: torch.dtype, mode: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
    """float32 against a shorter type on the same weights and inputs, both representable in it; noise in that type."""
    worst = Worst()
    for name, layer, wide, x in cases(tuple(LAYERS), dtype):
        with torch.no_grad(), mode():
            made, exact = layer(x), wide(x.double())
            base = wide.float()(x.float())
            worst.add(name, made, base, noise_of(layer, x, made, exact), dtype)
    worst.print("float32/shorter", dtype)


def compiled(backend: str, layer: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """The layer, compiled."""
    torch.compiler.reset()  # or the limit of recompiles would leave the last layers in eager mode
    return torch.compile(layer, backend=backend)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true", help="eager against Inductor and aot_eager instead")
    torch.set_num_threads(1)
    Numerics().apply()
    if parser.parse_args().compile:
        for backend in ("aot_eager", "inductor"):
            for dtype in DTYPES:
                measure(f"eager/{backend}", tuple(LAYERS), dtype, functools.partial(compiled, backend))
        return
    for dtype in DTYPES:
        across_kernels(dtype, gradient=False)
        across_kernels(dtype, gradient=True)
        measure("another order of accumulation", tuple(LAYERS), dtype, functools.partial(under, Reordered))
    measure("TF32 (simulated)", tuple(LAYERS), torch.float32, functools.partial(under, TF32))
    for dtype in DTYPES[2:]:
        across_dtypes(dtype)


if __name__ == "__main__":
    main()
