"""The problems, one file each; `get` finds one by name."""
