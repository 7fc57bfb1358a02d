"""Reports: views of a triage or a corpus as text, HTML, drafts, SARIF and JUnit."""
