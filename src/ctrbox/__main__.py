"""``python -m ctrbox``: the command line, for interpreters whose folder of commands is not on the path."""

from ctrbox.cli.main import main

main()
