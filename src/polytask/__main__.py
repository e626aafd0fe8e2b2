"""`python -m polytask` is the `polytask` command."""

import sys

# Python puts the working directory first on the module search path; remove it, so that no code is imported from there.
# Earlier imports may have used it: `polytask` and `python -P -m polytask` avoid that too.
if not sys.flags.safe_path:
    del sys.path[0]

from polytask.cli.main import main

main()
