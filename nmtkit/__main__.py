"""`python -m nmtkit`: lists the commands, each with the first sentence of its help."""

import click

from nmtkit.cli.command import command
from nmtkit.cli.start import COMMANDS, load_command
from nmtkit.version import __version__


@command("nmtkit")
def main() -> None:
    """List the commands on stdout, with the version."""
    click.echo(f"nmtkit {__version__}: neural machine translation, in these commands:\n")
    for name in COMMANDS:
        click.echo(f"  nmt-{name:<12}{load_command(name).get_short_help_str(limit=90)}")
    click.echo("\nnmt-… --help describes one of them.")


if __name__ == "__main__":
    main()
