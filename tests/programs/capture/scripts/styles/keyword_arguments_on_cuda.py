import torch


def scaled(table, size, *, factor):
    return (table.reshape(size) * factor).cumsum(-1)


arguments = {
    "table": torch.linspace(-1, 1, 24, device="cuda", dtype=torch.float64),
    "size": [2, 3, 4],
    "factor": 1.5,
}
reference = torch.compile(scaled, backend="inductor")(**arguments)
torch.testing.assert_close(reference, scaled(**arguments))
