"""The front: the command line, the Python API, notebooks and the pytest plugin."""
