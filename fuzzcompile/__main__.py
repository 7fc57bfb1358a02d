"""``python -m fuzzcompile``."""

from fuzzcompile.cli import main

if __name__ == "__main__":
    main()
