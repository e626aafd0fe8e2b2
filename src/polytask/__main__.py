"""`python -m polytask` is the `polytask` command."""

import sys

# Python has put the working directory first on the module search path; from here on no code from there is imported.
# What was imported before may have come from there: `polytask` and `python -P -m polytask` do not have this gap.
if not sys.flags.safe_path:
    del sys.path[0]

from polytask.cli.main import main

main()
