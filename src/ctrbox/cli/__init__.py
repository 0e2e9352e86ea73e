"""The commands of `ctrbox`, one module each, and how they talk to a person."""
