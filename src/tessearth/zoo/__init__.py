"""Encoders by name: shipped models, baselines, published weights and saved files."""
