import unittest

import torch


def turned(x):
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


def rotary(q, cos, sin):
    return q * cos.unsqueeze(1) + turned(q) * sin.unsqueeze(1)


class RotaryTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def test_rotary(self):
        q = torch.randn(1, 4, 6, 16, dtype=torch.bfloat16)
        cos, sin = (torch.randn(1, 6, 16, dtype=torch.bfloat16) for _ in range(2))
        torch.testing.assert_close(rotary(q, cos, sin), torch.compile(rotary)(q, cos, sin))


if __name__ == "__main__":
    unittest.main()
