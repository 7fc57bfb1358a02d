# pytorch#198052: numpy.fix in a compiled function.
# A bug: it rounds to the nearest in place of towards zero.

import numpy as np
import torch

EXPECT = ("miscompile",)
x = np.array([1.5, -1.5, 2.5, -0.5, 8.0, -8.0], dtype=np.float32)
print(torch.compile(lambda a: np.floor(a) + np.fix(a), backend="eager")(x))
