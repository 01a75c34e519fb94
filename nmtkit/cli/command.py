"""The base of all commands: common options, grouped help, signals, one-line errors, exit codes."""

import contextlib
import copy
import errno
import functools
import io
import os
import re
import signal
import sys
import time
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click
from click.core import ParameterSource
from click.shell_completion import shell_complete, split_arg_string

from nmtkit.cli.config_file import read_config_file
from nmtkit.cli.help_panels import help_in_panels
from nmtkit.cli.options import PathName
from nmtkit.cli.other_toolkits import answer
from nmtkit.config import flag
from nmtkit.console.log import LostReader, escape_python_messages, write_error, write_traceback
from nmtkit.console.terminal import is_styled, width
from nmtkit.errors import NmtkitError, ReportedElsewhere, RunError, UserError
from nmtkit.machine.torchrun import place_or_alone
from nmtkit.text.reading import WaitingFile
from nmtkit.version import __version__
from nmtkit.wording import did_you_mean

_COMMON = "Common"  # heading of the options that --help shows
_GENERAL = "General"  # heading of the options of every command, shown last
_COLUMN = 22  # width of the options next to their help, in a pipe
_HYPHEN = "\u2011"  # replaces - while help is wrapped, so that no option name is broken
_ONE_DASH = re.compile(r"-(\w[\w-]{2,})(=.*)?", re.DOTALL)  # a long option as OpenNMT-py also accepts it
_SHOWS_ALL = "nmtkit.cli.help_all"  # key in click's context
_SECONDS_TO_REPORT = 2.0
_NAMES_NO_FILE = (errno.ENAMETOOLONG, errno.EACCES, errno.ENOTDIR)
_raised: list[BaseException] = []  # exceptions raised by signals since the command began


class Terminated(BaseException):
    """Raised for SIGTERM. It is not an Exception, so that no error handler catches it."""


def _raise_signals() -> None:
    """Raise KeyboardInterrupt for SIGINT and `Terminated` for SIGTERM, in the main thread."""
    _raised.clear()
    signal.signal(signal.SIGTERM, _raise)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell makes background jobs ignore it
        signal.signal(signal.SIGINT, _raise)


def _raise(number: int, frame: types.FrameType | None) -> None:
    _raised.append(KeyboardInterrupt() if number == signal.SIGINT else Terminated())
    raise _raised[-1]


class Command(click.Command):
    """A click command with grouped help and the exit codes of nmtkit."""

    debug = False  #: whether errors are shown with a traceback

    def __init__(self, *args: Any, common: str = "", on_all_ranks: bool = False, **kwargs: Any) -> None:
        """Create a command.

        `common` names the options that --help shows, in this order; --help-all shows all options. Without `common`,
        --help also shows all. With `on_all_ranks`, the processes of torchrun share one run and its errors.
        """
        super().__init__(*args, **kwargs)
        self.common = tuple(common.split())
        self.on_all_ranks = on_all_ranks
        eager = functools.partial(click.Option, is_eager=True, expose_value=False)
        switch = functools.partial(eager, is_flag=True)
        advice = "TOML or JSON file of options. The command line overrides it: the prefix no- turns a switch off."
        self.params += [
            eager(["--config"], type=PathName(), callback=read_config_file, metavar="FILE", help=advice),
            switch(["--debug"], callback=_note_debug, help="Show the traceback of an error."),
            switch(["--help-all"], hidden=not common, callback=_show_all, help="Show all options and exit."),
        ]
        click.version_option(__version__, prog_name=self.name)(self)

    @property
    def _completion_variable(self) -> str:
        """The environment variable with which a shell requests completion, such as _NMT_TRAIN_COMPLETE."""
        return f"_{self.name}_complete".replace("-", "_").upper()

    def get_help(self, context: click.Context) -> str:
        """Return the help text, in panels on a terminal, otherwise plain."""
        if is_styled(sys.stdout):
            text = help_in_panels(self, context, self._groups(context), width(sys.stdout))
        else:
            text = super().get_help(context).replace(_HYPHEN, "-")
        if self._is_short(context):
            text += f"\n\nAll options: {self.name} --help-all"
        return text

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, options in self._groups(context).items():
            records = [option.get_help_record(context) or ("", "") for option in options]
            with formatter.section(heading):
                formatter.write_dl([(name, help.replace("-", _HYPHEN)) for name, help in records], col_max=_COLUMN)

    def _is_short(self, context: click.Context) -> bool:
        return bool(self.common) and _SHOWS_ALL not in context.meta

    def _groups(self, context: click.Context) -> dict[str, list[click.Option]]:
        """Return the options that help shows, with their spellings, by heading."""
        options = [option for option in self.get_params(context) if isinstance(option, click.Option)]
        shown = {str(option.name): _with_one_spelling(option) for option in options if not option.hidden}
        if self._is_short(context):
            return {_COMMON: [shown[name] for name in self.common]}
        groups: dict[str, list[click.Option]] = {}
        for option in shown.values():
            groups.setdefault(getattr(option, "heading", _GENERAL), []).append(option)
        groups[_GENERAL] = groups.pop(_GENERAL)
        return groups

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """Run the command and exit: 0 for success, 2 for a user error, 1 for a failure, 128 + n after signal n."""
        code = self._exit_code(list(sys.argv[1:] if args is None else args))
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is not None:
                    stream.flush()
            except OSError:  # the exit code already reports a failure of stdout; a failure of the log is ignored
                _discard(stream)
        if "TORCHELASTIC_RUN_ID" in os.environ:  # set by torchrun
            # DistributedDataParallel never joins gloo's threads. If one runs while Python shuts down, it aborts the
            # process, and torchrun reports a complete run as failed.
            os._exit(code)
        sys.exit(code)

    def _exit_code(self, arguments: list[str]) -> int:
        _raise_signals()
        self.debug = "--debug" in arguments  # for errors before click parses the options
        for name in ("stdin", "stderr"):
            if getattr(sys, name) is None:  # closed by the caller (2>&-): no file opened later must get its descriptor
                setattr(sys, name, stream := open(os.devnull, "w"))  # noqa: SIM115, PTH123
                os.set_inheritable(stream.fileno(), True)  # by workers
        escape_python_messages()
        try:
            if sys.stdout is None:
                raise UserError("stdout is closed")
            if (stdout := sys.__stdout__) and sys.stdout is stdout:  # otherwise, a program has replaced it
                sys.stdout = _complete_stdout(stdout)
            if instruction := os.environ.get(self._completion_variable):
                return self._complete(instruction)
            _check_text(arguments)
            # click's own main would turn a closed pipe into exit code 1.
            with self.make_context(self.name, list(arguments)) as context:
                self.invoke(context)
            sys.stdout.flush()
        except click.exceptions.Exit as exit:
            return exit.exit_code
        except click.UsageError as error:
            return self._report(self._usage_message(error, arguments), UserError.exit_code)
        except (KeyboardInterrupt, Terminated, click.Abort) as error:
            return self._report_signal(error)
        except (BrokenPipeError, LostReader):
            return 128 + signal.SIGPIPE  # the reader has ended (`… | head`): exit silently, like a Unix tool
        except ReportedElsewhere as error:
            return _let_another_report(error.exit_code)
        except Exception as error:
            if _raised:  # C code or a handler has replaced its exception
                return self._report_signal(_raised[0])
            if not isinstance(error, NmtkitError | ImportError | OSError | MemoryError):
                raise  # a bug
            code = UserError.exit_code if getattr(error, "errno", None) in _NAMES_NO_FILE else RunError.exit_code
            return self._report(_one_line(error), getattr(error, "exit_code", code))
        return 0

    def _complete(self, instruction: str) -> int:
        if instruction == "bash_complete" and _completes_redirection():
            click.echo("file,")  # makes click's bash script complete file names
            return 0
        return shell_complete(self, {}, str(self.name), self._completion_variable, instruction)

    def _report_signal(self, error: BaseException) -> int:
        if isinstance(error, Terminated):
            return self._report("terminated", 128 + signal.SIGTERM)
        return self._report("interrupted", 128 + signal.SIGINT)

    def _usage_message(self, error: click.UsageError, arguments: Sequence[str]) -> str:
        flags = [spelling for parameter in self.params for spelling in (*parameter.opts, *parameter.secondary_opts)]
        for option in (match[1] for match in map(_ONE_DASH.fullmatch, arguments) if match):
            if flag(option) in flags:
                return f"No such option -{option}: write {flag(option)}, with two dashes ({self._hint(error)})"
            if answer(str(self.name), flag(option)):
                return self._no_such_option(f"-{option}", flags, error)
        if isinstance(error, click.NoSuchOption):
            return self._no_such_option(error.option_name, flags, error)
        return f"{' '.join(error.format_message().split())} ({self._hint(error)})"

    def _no_such_option(self, name: str, flags: Sequence[str], error: click.UsageError) -> str:
        instead = answer(str(self.name), flag(name.lstrip("-")))
        if name in flags:  # hidden
            return f"{name} can be set only in a --config file ({self._hint(error)})"
        if instead is None:
            near = did_you_mean(name, flags)  # click's suggestions are often unrelated
            return f"No such option {name}.{near} ({self._hint(error)})"
        verb = "; it is" if instead.startswith("not") else ":"
        return f"No such option {name}{verb} {instead} ({self._hint(error)})"

    def _hint(self, error: click.UsageError) -> str:
        where = ""
        if isinstance(error, click.BadParameter) and error.param and error.ctx:
            source = error.ctx.get_parameter_source(str(error.param.name))
            where = "in the --config file; " if source is ParameterSource.DEFAULT_MAP else ""
        if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Argument) and error.ctx:
            where = f"usage: {self.name} {' '.join(self.collect_usage_pieces(error.ctx))}; "
        needs_any = self.common and not isinstance(error, click.MissingParameter)
        return f"{where}see {self.name} {'--help-all' if needs_any else '--help'}"

    def _report(self, message: str, code: int) -> int:
        """Log why the command ends, in one line, and return the exit code.

        Under torchrun, a process names its rank, and only the first process of a machine reports shared errors.
        """
        place = place_or_alone()
        if self.on_all_ranks and code != RunError.exit_code and place.local_rank != 0:
            return _let_another_report(code)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun may send it now if another process has ended
        with contextlib.suppress(LostReader):  # the exit code still reports the error
            if self.debug and (error := sys.exc_info()[1]):
                write_traceback(error)
            write_error(str(self.name), f"{f'rank {place.rank}: ' if place.rank else ''}{message}")
        return code


def command(name: str, **settings: Any) -> Callable[[Callable[..., Any]], Command]:
    """Return a decorator like `click.command`, for a command with nmtkit's help, common options and exit codes."""
    settings.setdefault("context_settings", {"help_option_names": ["-h", "--help"], "max_content_width": 110})
    return click.command(name, cls=Command, **settings)


def _show_all(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        context.meta[_SHOWS_ALL] = True
        click.echo(context.get_help())
        context.exit()


def _with_one_spelling(option: click.Option) -> click.Option:
    """Reduce a switch to the flag that changes its default; return any other option unchanged."""
    if not option.secondary_opts:
        return option
    shown = copy.copy(option)
    shown.opts, shown.secondary_opts = (option.secondary_opts if option.default else option.opts), []
    return shown


def _note_debug(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    typing.cast(Command, context.command).debug |= value


def _completes_redirection() -> bool:
    """Whether the word that bash completes follows a redirection such as `<` or `>`, which bash passes as words."""
    words = split_arg_string(os.environ["COMP_WORDS"])
    return bool(re.fullmatch(r"\d*&?[<>]+[&|]?", words[int(os.environ["COMP_CWORD"]) - 1]))


def _check_text(arguments: Sequence[str]) -> None:
    """Raise UserError for arguments that are not text. Checkpoints cannot store them, and torch cannot open them."""
    for word in arguments:
        if "\udc80" <= max(word, default="") <= "\udcff":  # stand for bytes that Python cannot decode
            shown = os.fsencode(word).decode("ascii", "backslashreplace")
            raise UserError(f"{shown} is not {sys.getfilesystemencoding().upper()}: if it is a file, rename it")


def _complete_stdout(stdout: typing.TextIO) -> typing.TextIO:
    """Create a stdout in UTF-8 that writes everything or fails. A terminal keeps its own encoding.

    Python's own stdout is unbuffered with PYTHONUNBUFFERED, and then silently drops output that does not fit.
    """
    file = io.BufferedWriter(WaitingFile(stdout.fileno(), "w", closefd=False))
    is_terminal = stdout.isatty()
    encoding = stdout.encoding if is_terminal else "utf-8"
    return io.TextIOWrapper(file, encoding, errors="replace", line_buffering=is_terminal)


def _let_another_report(code: int) -> int:
    """Wait before exiting, because torchrun ends all processes with the first, even the one that reports the error."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(_SECONDS_TO_REPORT)
    return code


def _one_line(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, ImportError):
        first: BaseException = error  # a page of advice, such as numpy's, is replaced with its cause
        while isinstance(cause := first.__cause__ or first.__context__, ImportError | OSError):
            first = cause
        text = f"cannot load a library: {first}"
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    elif isinstance(error, MemoryError):
        text = text or "out of memory: stop other processes, or raise the limit (ulimit -v)"
    return " ".join(text.split()) or type(error).__name__


def _discard(stream: typing.TextIO) -> None:
    """Discard unwritten output of a stream; otherwise Python tries again at exit and prints a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
