"""The `tessearth` command: one file per subcommand, heavy imports inside them, so that --help answers at once."""
