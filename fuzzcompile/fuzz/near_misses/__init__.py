"""Near misses: small operators that change a case so that a rewrite should no longer apply, or must apply with care."""
