"""SpaceMouse, Joy and scripted expert to operator commands."""
