"""The only package that touches the internals of torch.compile."""
