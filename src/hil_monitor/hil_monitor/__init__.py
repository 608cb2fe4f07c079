"""Operator console: a web page with cameras, state, prompts, controls and curves."""
