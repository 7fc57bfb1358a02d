import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            12,
            6,
            24,
            dropout=0.0,
            activation="relu",
            batch_first=True,
            norm_first=True,
        )

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], x.device, x.dtype)
        return self.layer(x, src_mask=mask, is_causal=True)


def run(model, inputs):
    with torch.autocast(inputs[0].device.type, dtype=torch.bfloat16):
        return model(*inputs)


def make():
    torch.manual_seed(905959)
    x = torch.randn(3, 16, 12)
    return Model().eval(), (x,)
