"""Stages of the compiler, each with the looks that find and prove its faults."""
