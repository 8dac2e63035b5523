"""The fast strategies of a Voronoi encoder on a CPU and a GPU."""
