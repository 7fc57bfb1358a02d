import torch
from torch import nn
from torch.nn import functional as F

BACKWARD = True
OPTIONS = {
    "post_grad_fusion_options": {
        "batch_aten_mul": {
            "min_fuse_set_size": 2,
        },
    },
    "reorder_for_peak_memory": False,
}


class Convolution2d(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(6, 6, (3, 1), padding=(1, 0), bias=False)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x):
        image = x.transpose(1, 2)[..., None]
        out = self.convolution(image)
        out = self.norm(out)
        return out.squeeze(-1).transpose(1, 2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Convolution2d()

    def forward(self, x):
        return x + self.attention(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(32, 6)
        self.positions = nn.Embedding(64, 6)
        self.block = Block()

    def forward(self, tokens):
        places = torch.arange(5, device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        rows = x.flatten(0, -3)
        x = torch.baddbmm(rows, rows @ rows.transpose(1, 2), rows, beta=0, alpha=0.01).view(x.shape)
        rows = x.flatten(0, -3)
        rows = F.lp_pool1d(rows, 2, 1, 1)
        x = rows.reshape(x.shape).to(x.dtype)
        x = self.block(x)
        return x


def make():
    torch.manual_seed(10874)
    tokens = torch.randint(0, 32, (2, 5))
    return Model().to(torch.bfloat16).train(), (tokens,)
