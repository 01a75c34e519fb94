"""`python -m nmtkit`: lists the commands, each with the first sentence of its help."""

import click

from nmtkit.cli.command import command
from nmtkit.cli.start import COMMANDS, load_command
from nmtkit.version import __version__


@command("nmtkit")
def main() -> None:
    """List the version and the commands on stdout."""
    click.echo(f"nmtkit {__version__}: neural machine translation, with these commands:\n")
    for name in COMMANDS:
        click.echo(f"  nmt-{name:<12}{load_command(name).get_short_help_str(limit=90)}")
    click.echo("\nnmt-… --help describes a command.")


if __name__ == "__main__":
    main()
