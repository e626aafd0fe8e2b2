"""`python -m polytask` is the `polytask` command."""

from polytask.cli.main import main

main()
