"""python -m kingpost."""

from kingpost.cli import main

if __name__ == "__main__":
    main()
