"""The store of campaigns, cases, findings, reproducers and coverage, in SQLite or another database."""
