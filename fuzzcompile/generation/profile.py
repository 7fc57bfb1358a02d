"""What a campaign lets the generator draw."""

from __future__ import annotations

from dataclasses import dataclass

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Profile:
    """The axes of a campaign; together with a seed it fixes every case that is drawn.

    Without ``near_misses`` none of the operators of `fuzzcompile.generation.near_misses` is drawn,
    the plain coincidences of shape among them.
    """

    near_misses: bool = True
    dtypes: tuple[str, ...] = DTYPES
    training: bool = True

    def __post_init__(self) -> None:
        unknown = [dtype for dtype in self.dtypes if dtype not in DTYPES]
        if unknown or not self.dtypes:
            raise ValueError(f"dtypes must be some of {', '.join(DTYPES)}, not {self.dtypes}")
