"""What a campaign aims at: rules, operators and lines of the compiler. Needs no torch."""
