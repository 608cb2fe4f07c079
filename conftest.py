"""pytest fixtures of the whole workspace."""

pytest_plugins = ["hil_common.testing"]
