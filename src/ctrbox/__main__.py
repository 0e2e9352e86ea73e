"""Runs the command line as ``python -m ctrbox``, for environments in which the ``ctrbox`` script is not on the path."""

from ctrbox.cli.main import main

main()
