"""From a ledger of rewrites to the one at fault, and the proof."""
