"""The command line ``ctrbox``: one module for each group of commands, and the parts that they share."""
