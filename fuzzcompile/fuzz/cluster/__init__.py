"""Campaigns on a Dask cluster: worker pools on other machines."""
