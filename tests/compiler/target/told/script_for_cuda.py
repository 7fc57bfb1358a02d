import torch

model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16)).cuda().half()
compiled = torch.compile(model)
with torch.no_grad():
    print(compiled(torch.randn(4, 16, device="cuda", dtype=torch.float16)).sum().item())
