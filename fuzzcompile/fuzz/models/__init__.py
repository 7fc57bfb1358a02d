"""Architectures of transformers and timm as cases."""
