from tessearth.cli.app import main as main
