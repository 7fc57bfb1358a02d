"""Programs of Python state that changes between two calls, and of Python semantics around the tensors.

A *cell* is a value of some kind, held by a carrier (an attribute, a closure, a global, ...), which the forward pass
reads and ``run`` changes between two calls. Carriers, kinds of values with their reads and changes, whole changes of
modules and modes, side effects of the call itself, and what a forward pass calls besides operators (higher-order
operators, functions with a derivative of their own, transforms) are rows of the TOML tables beside this file. Every
carrier combines with every kind of value, and a kind with each of its reads and changes.
"""
