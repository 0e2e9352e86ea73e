"""Pages about recorded runs. They are made from the files of a run; nothing here trains."""
