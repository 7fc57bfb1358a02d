"""How far is far: every threshold on which a verdict or a culprit rests, with the measurement or reason behind it.

Limits per pair of devices or backends, which a user may set, are in tolerances.toml. Sizes of samples, times and
numbers of tries stand where they are used.
"""

from __future__ import annotations

_FLOAT32_EPS = 2.0**-23

# A change of meaning, measured in float64.

# A float64 change beyond this share of a value's size is one of meaning. Rewrites and decompositions may fold constants
# in the program's own float32, which moves a float64 result by up to 4 ulp of float32; replayed clean graphs move by
# 4e-16 (measured).
SEMANTIC_STEP = 4 * _FLOAT32_EPS
# A change must be this many times what one ulp per operator does to the same value: a program that amplifies rounding
# amplifies float64's as well. Clean generated modules stay within 1e-14, 45 ulp of float64 (210 cases, measured).
AMPLIFIED = 100.0
# Seeds of the runs in which every operator moves by an ulp.
NOISE_SEEDS = (1, 2)
# A decomposition may hold its constants in float32: the native run's error, scaled from its dtype to float32, may be
# exceeded this many times.
CONSTANTS_FACTOR = 2.0
# Changes below so many ulps of the program's own dtype may be hidden there by rounding.
HIDDEN_ULPS = 100.0
# Of a change too large for rounding to hide, at least so much shows in the program's own precision: one that does not
# comes of running the graph in float64 (a cast to the dtype that a tensor has is no copy there, and one elsewhere).
NATIVE_SHARE = 0.1
# The program's own dtype cannot show a change below this share of its ulp, unless some elements are much smaller than
# the rest: a default that depends on the dtype (the epsilon of a norm) is the one of float32 in a decomposition.
INVISIBLE_ULPS = 0.01
# A change by more than this share of a result's size does not hide in rounding, not even in bfloat16's.
HIDEABLE_STEP = 0.5

# Values that are zero but for rounding.

# A gradient this much smaller than the largest of its run, and a result this much smaller than the usual ones of its
# graph, in float64, is zero by symmetry: rounding leaves some 1e-16 of the terms that cancel, and a true value of that
# ratio would be lost in float32 anyway.
VANISHING = 1e-11
# Results that shrink by more than this when computed in float64 are zero by symmetry too. They are measured on the
# scale of the usual results: on their own, rounding alone moves them by 100 %.
SHRINKING = 1e-6
# Gradients of dynamo's graph this much smaller than the usual ones are measured on the scale of the usual.
VANISHING_GRADIENT = 1e-6
# A small result is one where native precision gives it to within so much of its size.
NATIVE_DIGITS = 0.01

# Derivatives, against differences in float64.

# Central differences are taken over this share of a tensor's size, and over half of it: their error is of the order of
# its square, 1e-10, and that of rounding 1e-16 over it, 1e-11.
DIFFERENCE_STEP = 1e-5
# By this share of the whole may the differences of an operator miss its derivative: in 173 calls of operators that have
# one (tests/run/reference/test_formulas.py, torch 2.13) they miss by less than 1e-6, in 168 by less than 1e-8.
DERIVATIVE_TOLERANCE = 1e-4
# Differences of a program's loss tell two gradients apart if they meet one within the first share of what those part
# by, and miss the other by more than the second.
MEETS, MISSES = 0.1, 0.5
# Along a random direction a gradient is wrong that misses differences by this share of its size, and by so many times
# what the differences on either side, and those of two steps, are apart. Gradients of single operators on the samples
# of torch's own tables (torch 2.13; 4885 in float64, 3759 in complex128) miss by less than 3e-5, all but 30 by 1e-6.
LEAST_MISS = 1e-3
MISS_FACTOR = 10.0

# Rounding in the program's own precision.

# A run that rounds differently may be this many times farther from the reference than eager and the perturbed runs
# were: they are a small sample of what rounding can do. In 30 clean transformer blocks with their gradients (float32,
# bfloat16, float16; 394 values, torch 2.13, CPU) compiled was at most 1.4 times as far, 0.35 times in short types.
ROUNDING_FACTOR = 6.0
# Units in the last place that any result may be off by, even if eager and every perturbed run are exact.
ALWAYS_ALLOWED = 4.0
# Slices of fewer elements than this say too little about the size of rounding in them.
LEAST_SLICE = 16
# A native step of a rewrite below this is rounding, whatever the graph's own rounding error: 8 ulp of float32.
LEAST_NATIVE_STEP = 1e-6
# A kernel's error may be this many times the noise: rounding was carried through the kernels before it, and through
# other ones in the values that it is compared with.
KERNEL_FACTOR = 20.0
# If eager and compiled differ by this share of their size, and both are within what rounding allows, eager itself has
# no correct digits left: not even the second bit is certain.
NO_DIGITS = 0.25
# A compiled run is as wrong as a perturbed one if it is no more than this many times as far from the reference (where
# nearly all digits of a variance cancel, 1.03 times; torch 2.13). Six times let pass a bfloat16 kernel that is 2 % off.
AS_WRONG = 2.0
# A program with sums that float64 mends may be off by this share of a result's size where torch's own ``same`` passes:
# eager's kernels of the CPU add up in float64, and perturbed runs with them, where compiled code adds up in float32
# (convolutions and batch norms in training: 4e-5 to 1.4e-3 of gradients in which terms cancel, torch 2.13).
SLIGHT_LOSS = 0.01
# An error beyond this share of the output's size is not a lack of precision, whatever float64 shows: bfloat16 alone
# errs by 2**-9 of a value, so that 50 such errors would have to add up.
GROSS_ERROR = 0.1

# Errors of many elements together.

# Fewer elements than this average nothing out.
LEAST_ELEMENTS = 64
# The share of the elements, the smallest errors first, that usual rounding is read from: a few large ones are none.
KEPT_SHARE = 0.95
# Multiples of the usual rounding that are suspicious. In 216 runs of transformer blocks (float32, bfloat16 and
# float16, eval and training, 1008 values) the largest was 1.26 for the RMS and 0.45 for the bias.
SUSPICIOUS_RMS = 1.5
SUSPICIOUS_BIAS = 2.0
# Rounding of the result alone: uniform within one unit in the last place, its RMS is 1/√12 of that unit; a scalar that
# multiplies all elements is itself rounded, which on average makes a common factor of a quarter of eps.
ROUNDED_RMS = 12**-0.5
ROUNDED_BIAS = 0.25
# Each operator of a perturbed run moves by -1, 0 or 1 units in the last place, eager's by up to a half: the perturbed
# runs' RMS was 2 to 4 times eager's in float32 and 4 to 7 times in shorter types. A quarter of it stands for usual
# rounding where eager happened to be exact, a half where no float64 step confirms the suspicion.
PERTURBED_SHARE = 0.25
PERTURBED_SURELY = 0.5

# The same computation made twice.

# The same kernels on the same values: what differs by more than this many units in the last place is another call.
ANOTHER_CALL_ULPS = 100.0
# Numbers that are computed from the same draws, in a bfloat16 at least, differ by less than this of their size.
OTHER_NUMBERS = 0.05
# Two good implementations of a function differ by an ulp of float32, which changes the rounding to float16 of no more
# than one element in 2**12. A cast left out changes that of a large part of them.
DIFFERING_SHARE = 0.01
# Two forms of a function are at most so many ulps of the value apart.
FORMS_APART = 4
# A compiled result is that of a neighbour if it is this much nearer to it than to its own.
NEARER_TO_NEIGHBOUR = 0.02

# The machine.

# Processes that want each processor, beyond which a program that ran out of time got too little of one to say anything.
BUSY_LOAD = 3.0
