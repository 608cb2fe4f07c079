"""Graph description, launch, configuration, CLI, hil_manager."""
