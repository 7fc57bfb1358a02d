import importlib.util
import pathlib
import tempfile

import torch

SOURCE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return torch.relu(self.conv(x)).mean((2, 3))
"""

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "net.py")
        path.write_text(SOURCE)
        spec = importlib.util.spec_from_file_location("net", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    torch.manual_seed(0)
    net, x = module.Net().eval(), torch.rand(1, 3, 9, 9)
    with torch.no_grad():
        print(torch.allclose(net(x), torch.compile(net)(x), rtol=1e-2))
