"""Cases and campaigns: generators of cases, and the loop that judges them."""
