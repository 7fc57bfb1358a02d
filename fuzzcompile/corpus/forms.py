"""What findings were drawn from: the generator's general parts, or a form that a public report spelled.

A finding of the second kind shows that the judge sees the reported bug. It does not show that the search would have
found it without the report.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

GENERAL = "general parts"
# Features of generated cases that follow a public report of pytorch/pytorch, by that report. Those of detours and of a
# cache left the generator with the operator programs, and stand here for corpora from before.
REPORTS = {
    "softmax_axis": "#196468",
    "key_permuted": "#195320",
    "tensor_scale": "#191203",
    "counted": "#189518",
    "shifted_in_place": "#197829",
    "cache_moved_in_place": "#197829",
    "same_written": "#195422",
    "refused": "#169779, #178480, #193757, #195579, #197554",
}


def drawn_from(cases: Iterable[Collection[str]]) -> str | None:
    """What a finding was drawn from, by the features of each case that showed it.

    Returns:
        `GENERAL` if one of the cases has no form of a report, ``the form of #N`` if each has, and None if no case's
        features are known: a user wrote it, or a corpus does not say.
    """
    known = [features for features in cases if features]
    if not known:
        return None
    forms = [[name for name in REPORTS if name in features] for features in known]
    return f"the form of {REPORTS[forms[0][0]]}" if all(forms) else GENERAL
