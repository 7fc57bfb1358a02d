"""Cases from torch's own tables of operators."""
