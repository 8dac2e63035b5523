"""The sphere: coordinates, land, places drawn on it, grids and Voronoi cells."""
