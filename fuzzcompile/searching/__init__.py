"""Public issues and pull requests that may be about a finding, by GitHub's search API. Needs no torch."""
