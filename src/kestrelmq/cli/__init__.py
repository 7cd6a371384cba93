"""The `kestrelmq` command: one module for each group of commands, listed in `main.COMMANDS`."""
