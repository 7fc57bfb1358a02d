"""Focused campaigns: cases aimed at one rule or at a changed part of the compiler."""
