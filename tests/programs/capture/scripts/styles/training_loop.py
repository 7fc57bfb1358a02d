import torch
from torch import nn, optim

torch.manual_seed(0)
device = torch.device("cuda:0")
net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)).to(device)
fast = torch.compile(net)
optimizer = optim.AdamW(net.parameters(), lr=1e-3)
for step in range(100):
    images, labels = torch.randn(4, 1, 8, 8, device=device), torch.randint(0, 10, (4,), device=device)
    optimizer.zero_grad(set_to_none=True)
    loss = nn.CrossEntropyLoss()(fast(images), labels)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
