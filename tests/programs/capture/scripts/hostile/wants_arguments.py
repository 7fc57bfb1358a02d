import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("file")
path = parser.parse_args().file
torch.compile(torch.load(path))(torch.ones(3))
