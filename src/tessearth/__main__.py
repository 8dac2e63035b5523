"""`python -m tessearth` is the command."""

from tessearth.cli.app import main

main()
