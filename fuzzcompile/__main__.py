"""``python -m fuzzcompile``."""

from __future__ import annotations

from fuzzcompile.front.cli.main import main

if __name__ == "__main__":
    main()
