"""The `hil` command. Standard library only: it runs before anything is installed."""
