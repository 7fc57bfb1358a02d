"""Watch a training or serving script: compare sampled steps of its compiled callables with eager, beside the script."""
