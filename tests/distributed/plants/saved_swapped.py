"""AOTAutograd saves the first two tensors of one shape for the backward pass, each in the place of the other."""

import itertools

from torch._functorch._aot_autograd.runtime_wrappers import _AutogradSavedState

right = _AutogradSavedState.save_from_forward


def save_from_forward(self, ctx, outputs):
    saved = range(*self.metadata.tensors_saved_for_backwards_with_vc_check_slice.indices(len(outputs)))
    swapped = list(outputs)
    alike = (pair for pair in itertools.combinations(saved, 2) if len({outputs[place].shape for place in pair}) == 1)
    for one, other in itertools.islice(alike, 1):
        swapped[one], swapped[other] = outputs[other], outputs[one]
    return right(self, ctx, swapped)


_AutogradSavedState.save_from_forward = save_from_forward
