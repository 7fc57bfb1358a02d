import warnings

warnings.filterwarnings("ignore")
import numpy as np
import torch


def curve(x):
    return torch.cosh(x)


points = torch.tensor([88.9, 89.2, -89.1, 1.0])
wanted = curve(points).numpy()
torch._dynamo.reset()
got = torch.compile(curve, fullgraph=True)(points).numpy()
assert np.isfinite(wanted).all()
assert np.isfinite(got).all(), got
