"""The parts of a reproducer: what is kept of the case, how it is driven, what is compared, at which bound."""
