"""`python -m precook`: the command line."""

from precook.cli.main import main

if __name__ == "__main__":
    main()
