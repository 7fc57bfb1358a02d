"""The code generators of Inductor, an adapter each: whatever depends on the language that a kernel is written in."""
