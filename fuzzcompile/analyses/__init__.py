"""Analyses beside triage: profiles by layer, watched training scripts, and what campaigns reached of the compiler."""
