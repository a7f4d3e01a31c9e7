"""`python -m loadsheet`."""

from loadsheet.cli import main

if __name__ == "__main__":
    main()
