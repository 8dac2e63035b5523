"""The parts of the baselines: positional features and networks, one file for each encoder or family."""
