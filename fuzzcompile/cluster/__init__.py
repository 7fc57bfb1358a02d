"""Campaigns on Dask distributed: tasks travel as plain data, and run in worker processes of our own on Dask workers."""
