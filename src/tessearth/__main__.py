"""`python -m tessearth` is the command."""

from tessearth.cli import main

if __name__ == "__main__":  # a process started to read tiles imports this module too
    main()
