"""Public issues of torch 2.13 with the culprit that each must get, derived from the issue and from torch's source."""

from __future__ import annotations

from plants import TESTS, Expected, Planted, nothing

_SFDP = ("joint_graph",)
# Case: what is at fault, and why.
KNOWN = {
    # key.transpose(-2, -1) of pattern 28 (unprojected attention with inference's permutes) matches any permute.
    "issue_195320": Expected(_SFDP, ("_sfdp_pattern_28",), "pass_pattern_0"),
    # softmax over any dim matches softmax over the last; patterns 1 and 3 fall through to each other.
    "issue_196468": Expected(_SFDP, ("_sfdp_pattern_1",), "pass_pattern_0"),
    # _sfdp_params_check takes a tensor for the scale; pattern 5 is the one with an additive mask and a division.
    "issue_191203b": Expected(_SFDP, ("_sfdp_pattern_5",), "pass_pattern_0"),
    # pointless_cumsum_replacement takes its dtype from the tensor of ones, not from the argument of cumsum...
    "issue_189518": Expected(("post_grad",), ("pointless_cumsum_replacement",), "pass_pattern_1"),
    # ... and reads shape[dim] of a 0-d tensor.
    "issue_193265": Expected(("post_grad",), ("pointless_cumsum_replacement",), "pass_pattern_1"),
    # The clone between two overlapping slices is dropped as a no-op, and the scatter then reinplaced over them.
    "issue_197829": Expected(
        ("post_grad",),
        ("remove_noop_ops", "reinplace_inplaceable_ops"),
        None,
        ("remove_noop_ops", "reinplace_inplaceable_ops"),
    ),
    # index_put_(accumulate) into an expanded view: should_reinplace looks at uses, not at overlap.
    "issue_188084": Expected(("post_grad",), ("reinplace_inplaceable_ops",)),
    # torch/_decomp/decompositions.py: dropout(train=False) returns input.clone(), eager the input itself. The
    # decomposition is a py_impl of the composite operator, so that it is in force without any table.
    "issue_195422": Expected(("decomposition", "functionalization"), ("dropout", "aten.dropout")),
    # torch/_inductor/decomposition.py: addmm of 1x1 matrices becomes alpha * out + beta * self, which broadcasts out.
    "issue_195579": Expected(("decomposition",), ("addmm", "aten.addmm")),
    # torch/_inductor/decomposition.py: _lerp_scalar has the strides of its last multiplication.
    "issue_198343b": Expected(("decomposition",), ("lerp", "aten.lerp")),
    # codegen/cpp.py: vectorised reductions over int8 begin at 0; all six outputs are such reductions.
    "issue_191499": Expected(("codegen",), ("amin", "amax", "min", "max", "argmin", "argmax")),
}


def issues() -> list[Planted]:
    """The known issues that are bugs of torch 2.13, as they are."""
    folder = TESTS / "known_issues"
    return [Planted(name, nothing, folder / f"{name}.py", expected) for name, expected in KNOWN.items()]
