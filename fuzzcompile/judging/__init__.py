"""From what the runs of a case showed to a report: the decision, triage, and the quick probe of a reduction."""
