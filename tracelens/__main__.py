"""Run the command line as `python -m tracelens`."""

from tracelens.cli import main

if __name__ == "__main__":
    main()
