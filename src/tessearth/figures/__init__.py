"""Figures that need a model, a run or a table of scores."""
