# pytorch#198190: a compiled function that returns a generator.
# A bug: what comes back is a tuple_iterator.

import torch

EXPECT = ("miscompile",)


def f(x):
    def count():
        yield x * 1
        yield x * 2
        return "done"

    return count()


def make():
    return f, (torch.ones(2),)
