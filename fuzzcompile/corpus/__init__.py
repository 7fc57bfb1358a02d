"""The SQLite store of campaigns, cases, findings and coverage."""
