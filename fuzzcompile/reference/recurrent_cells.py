"""Fused cells of recurrent networks in plain operators: the same arguments and results, in any dtype.

On a CUDA device ``lstm_cell`` and ``gru_cell`` are one kernel each behind two matrix products (``_thnn_fused_*`` in
``aten/src/ATen/native/cuda/RNN.cu``). Gates are (batch, gates * hidden) without their biases; states are
(batch, hidden), biases (gates * hidden). The workspace is what the backward kernel needs of the forward one: the
activated gates, for a GRU also the state and the hidden part of the new gate.
"""

from __future__ import annotations

import torch

Maybe = torch.Tensor | None


def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: Maybe = None,
    hidden_bias: Maybe = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``_thnn_fused_lstm_cell``: the new state, the new cell and the workspace (batch, 4 * hidden)."""
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    taken, kept, new, shown = gates.chunk(4, 1)
    taken, kept, new, shown = taken.sigmoid(), kept.sigmoid(), new.tanh(), shown.sigmoid()
    cell = kept * cx + taken * new
    return shown * cell.tanh(), cell, torch.cat((taken, kept, new, shown), 1)


def lstm_cell_backward(
    grad_hy: Maybe, grad_cy: Maybe, cx: torch.Tensor, cy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[Maybe, ...]:
    """``_thnn_fused_lstm_cell_backward_impl``: gradients of the gates, of the cell and, if it has one, of the bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    taken, kept, new, shown = workspace.chunk(4, 1)
    squashed = cy.tanh()
    state = torch.zeros_like(cx) if grad_hy is None else grad_hy
    cell = state * shown * (1 - squashed * squashed) + (0 if grad_cy is None else grad_cy)
    gates = torch.cat(
        (
            cell * new * taken * (1 - taken),
            cell * cx * kept * (1 - kept),
            cell * taken * (1 - new * new),
            state * squashed * shown * (1 - shown),
        ),
        1,
    )
    return gates, cell * kept, gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: Maybe = None,
    hidden_bias: Maybe = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``_thnn_fused_gru_cell``: the new state and the workspace (batch, 5 * hidden)."""
    of_input, of_hidden = _biased(input_gates, input_bias).chunk(3, 1), _biased(hidden_gates, hidden_bias).chunk(3, 1)
    reset, update = (of_input[0] + of_hidden[0]).sigmoid(), (of_input[1] + of_hidden[1]).sigmoid()
    new = (of_input[2] + reset * of_hidden[2]).tanh()
    return new + update * (hx - new), torch.cat((reset, update, new, hx, of_hidden[2]), 1)


def gru_cell_backward(grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> tuple[Maybe, ...]:
    """``_thnn_fused_gru_cell_backward``: gradients of both gates, of the state and, if it has them, of both biases."""
    reset, update, new, hx, hidden = workspace.chunk(5, 1)
    of_new = grad_hy * (1 - update) * (1 - new * new)
    of_reset = of_new * hidden * reset * (1 - reset)
    of_update = grad_hy * (hx - new) * update * (1 - update)
    of_input = torch.cat((of_reset, of_update, of_new), 1)
    of_hidden = torch.cat((of_reset, of_update, of_new * reset), 1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, grad_hy * update, *biases


def _biased(gates: torch.Tensor, bias: Maybe) -> torch.Tensor:
    return gates if bias is None else gates + bias
