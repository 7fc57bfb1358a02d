"""Analyses of one program beside triage: profiles by layer, and watched training scripts."""
