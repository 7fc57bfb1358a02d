"""Wrong metadata under torch.compile, culprit torch._transformer_encoder_layer_fwd; torch 2.15.0+cu132."""
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            2,
            2,
            2,
            dropout=0.0,
            activation="relu",
            batch_first=True,
            norm_first=False,
        )

    def forward(self, x):
        return self.layer(x)

def run(model, inputs):
    with torch.autocast(inputs[0].device.type):
        return model(*inputs)

def make():
    x = torch.randn(1, 2, 2)
    return Model().eval(), (x,)

if __name__ == "__main__":
    torch.manual_seed(20240229)
    model, inputs = make()
    with torch.no_grad():
        eager, compiled = run(model, inputs), run(torch.compile(model), inputs)
    eager, compiled = (out.dtype for out in (eager, compiled))
    print(f"torch {torch.__version__}: eager {eager}, compiled {compiled}")
    wrong = eager != compiled
    print("BUG: compiled and eager differ in dtype" if wrong else "OK: compiled and eager agree")
    raise SystemExit(wrong)
