"""Search of PyTorch's issues and pull requests for reports of a finding."""
