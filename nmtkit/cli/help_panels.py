"""`--help` on a terminal: a panel for each group of options, by rich-click."""

from collections.abc import Mapping, Sequence

import click


def help_in_panels(
    command: click.Command, context: click.Context, groups: Mapping[str, Sequence[click.Option]], width: int
) -> str:
    """The help of a command with its options in groups, heading -> options, for a terminal of `width` columns."""
    from rich_click import RichHelpConfiguration, RichHelpFormatter  # only a terminal waits for this import
    from rich_click.rich_help_rendering import get_rich_help_text
    from rich_click.rich_panel import RichOptionPanel

    config = RichHelpConfiguration(
        width=width,
        force_terminal=True,
        enable_theme_env_var=False,
        style_helptext="",
        padding_helptext_first_line=(0, 0, 1, 0),
        append_metavars_help_string="{}",
        options_table_column_types=["opt_all_metavar", "help"],
    )
    formatter = RichHelpFormatter(config=config)
    formatter.write_usage(context.command_path, " ".join(command.collect_usage_pieces(context)))
    get_rich_help_text(command, context, formatter)  # type: ignore[arg-type]  # uses what every context has
    for heading, options in groups.items():
        panel = RichOptionPanel(heading, options=[str(option.name) for option in options])
        owner = click.Command(None, params=list(options), add_help_option=False)  # `command` has all spellings of them
        formatter.write(panel.render(owner, context, formatter))  # type: ignore[arg-type]
    return formatter.getvalue().rstrip("\n")
