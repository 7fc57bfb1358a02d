"""Diagnosis: the verdict on a case, the culprit, its proof and its cause."""
