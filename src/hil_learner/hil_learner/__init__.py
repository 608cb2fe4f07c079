"""Ingest, replay, training thread, policy publication."""
