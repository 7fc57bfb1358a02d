"""The parts of a reproducer: the text of its case, the runs, the comparison and its bounds."""
