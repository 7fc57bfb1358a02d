"""The ground: reports, verdicts, stages, settings and facts, without torch."""
