"""Imagery: sources of tiles, places to look at, frozen image encoders, and the store of their features."""
