"""Pages to send: one case, a profile, a whole corpus, each one HTML file that needs no network. Imports no torch."""
