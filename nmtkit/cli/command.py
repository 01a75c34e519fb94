"""How every command begins and ends: common options, help under headings, signals, errors in one line, exit codes."""

import contextlib
import errno
import io
import os
import signal
import sys
import time
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from nmtkit.cli.config_file import is_text, read_config_file
from nmtkit.cli.options import PathName
from nmtkit.cli.other_toolkits import answer
from nmtkit.config import flag
from nmtkit.errors import NmtkitError, ReportedElsewhere, RunError, UserError
from nmtkit.log import escape_python_messages, say, say_traceback
from nmtkit.version import __version__
from nmtkit.wording import did_you_mean

COMMON = "Common options"
_SECONDS_TO_SPEAK = 2.0
_NAMES_NO_FILE = (errno.ENAMETOOLONG, errno.EACCES, errno.ENOTDIR, errno.ELOOP)
_ONCE = ("input", "output", "config")  # of others the last counts; of these, the first one's file would be passed over


class Command(click.Command):
    """A click command with grouped help and the exit codes that every nmtkit command keeps."""

    debug = False  #: whether an error is to have its traceback

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [
            click.Option(
                ["--config"],
                type=PathName(),
                is_eager=True,
                expose_value=False,
                callback=read_config_file,
                metavar="FILE",
                help="Read options from a TOML or JSON file, such as a run's options.json; the command line wins.",
            ),
            click.Option(
                ["--debug"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_note_debug,
                help="Show the traceback of an error.",
            ),
        ]
        click.version_option(__version__, prog_name=self.name)(self)

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(context).parse_args(list(args))
        rest = super().parse_args(context, args)
        for parameter in order:
            if parameter.name in _ONCE and order.count(parameter) > 1:
                raise UserError(f"{flag(parameter.name)} is given twice: there can be one only")
        return rest

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context)
            if record is not None and isinstance(parameter, click.Option):
                groups.setdefault(getattr(parameter, "heading", COMMON), []).append(record)
        groups[COMMON] = groups.pop(COMMON, [])
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """Run the command and exit: 0 done, 2 the user's mistake, 1 a failure, 128 + n after signal n."""
        arguments = list(sys.argv[1:] if args is None else args)
        code = self._exit_code(arguments)
        try:
            if sys.stderr is not None:
                sys.stderr.flush()
        except OSError:  # a full disk below the log is no failure of the work
            abandon(sys.stderr)
        if "TORCHELASTIC_RUN_ID" in os.environ:  # set by torchrun
            # DistributedDataParallel never lets go of gloo's threads. One that is at work while Python ends aborts it,
            # and torchrun would call a run failed that is complete.
            os._exit(code)
        sys.exit(code)

    def _exit_code(self, arguments: list[str]) -> int:
        signal.signal(signal.SIGTERM, _raise_on_sigterm)
        self.debug = "--debug" in arguments  # for what goes wrong before click comes to it
        if sys.stdin is None:  # closed by the caller (<&-): a command that reads it meets an error, as other tools do
            sys.stdin = open(os.devnull, "w")  # noqa: SIM115, PTH123
        if sys.stderr is None:
            return UserError.exit_code
        escape_python_messages()
        try:
            if sys.stdout is None:
                raise UserError("stdout is closed")
            if isinstance(sys.stdout, io.TextIOWrapper):  # help has characters that not every encoding has
                sys.stdout.reconfigure(errors="replace")
            _check_text(arguments)
            # Not click's own main: it turns a closed pipe into exit code 1.
            with self.make_context(self.name, list(arguments)) as context, _signals_as_they_are():
                self.invoke(context)
            sys.stdout.flush()
        except click.exceptions.Exit as exit:
            return exit.exit_code
        except click.UsageError as error:
            return self._report(f"{self._complaint(error)} ({self._hint(error)})", UserError.exit_code)
        except (KeyboardInterrupt, click.Abort):
            return self._report("interrupted", 128 + signal.SIGINT)
        except Terminated:
            return self._report("terminated", 128 + signal.SIGTERM)
        except BrokenPipeError:
            abandon(sys.stdout)  # the reader has gone (`… | head`): end as quietly as a Unix tool
            return 128 + signal.SIGPIPE
        except ReportedElsewhere as error:
            return _let_another_speak(error.exit_code)
        except (NmtkitError, OSError, MemoryError) as error:
            code = UserError.exit_code if getattr(error, "errno", None) in _NAMES_NO_FILE else RunError.exit_code
            return self._report(_one_line(error), getattr(error, "exit_code", code))
        return 0

    def _complaint(self, error: click.UsageError) -> str:
        """What is wrong with the command line."""
        if isinstance(error, click.NoSuchOption):  # click's own suggestions come from far away
            if instead := answer(str(self.name), error.option_name):
                return f"No such option {error.option_name}: {instead}"
            flags = [spelling for parameter in self.params for spelling in (*parameter.opts, *parameter.secondary_opts)]
            return f"No such option {error.option_name}.{did_you_mean(error.option_name, flags)}"
        return " ".join(error.format_message().split())

    def _hint(self, error: click.UsageError) -> str:
        """Where the user finds what is wrong with the command line, and what is expected."""
        where = "in the --config file; " if _is_of_file(error) else ""
        if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Argument) and error.ctx:
            where = f"usage: {self.name} {' '.join(self.collect_usage_pieces(error.ctx))}; "
        return f"{where}see {self.name} --help"

    def _report(self, message: str, code: int) -> int:
        """Say in one line why the command ends. Of the processes that torchrun starts, the first on a machine says what
        all of them have been told or have met; a failure is said by whom it befalls, by name."""
        rank, local_rank = (os.environ.get(name, "0") for name in ("RANK", "LOCAL_RANK"))
        if code != RunError.exit_code and local_rank != "0":
            return _let_another_speak(code)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as torchrun sends it just now, when another has ended
        with contextlib.suppress(OSError):  # the exit code tells it all the same
            if self.debug and (error := sys.exc_info()[1]):
                say_traceback(error)
            say(f"{self.name}: {'' if rank == '0' else f'rank {rank}: '}{message}")
        return code


def command(name: str, **settings: Any) -> Callable[[Callable[..., Any]], Command]:
    """Like `click.command`, with nmtkit's help layout, common options and exit codes."""
    settings.setdefault("context_settings", {"help_option_names": ["-h", "--help"], "max_content_width": 110})
    return click.command(name, cls=Command, **settings)


def _note_debug(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    typing.cast(Command, context.command).debug |= value


def _check_text(arguments: Sequence[str]) -> None:
    """Refuse what is no text before the work: no checkpoint can name it, and torch opens no file that is called so."""
    for word in arguments:
        if not is_text(word):
            shown, encoding = os.fsencode(word).decode("ascii", "backslashreplace"), sys.getfilesystemencoding().upper()
            raise UserError(f"{shown}: not {encoding}: rename the file, or write it otherwise")


def _let_another_speak(code: int) -> int:
    """Wait a little: when one process has ended, torchrun ends the others, be they about to say why."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(_SECONDS_TO_SPEAK)
    return code


class Terminated(BaseException):
    """SIGTERM arrived. Not an Exception, so that nothing on the way mistakes it for a failure it can handle."""


@contextlib.contextmanager
def _signals_as_they_are() -> Iterator[None]:
    """A signal that arrives while an extension is loaded comes as an ImportError, which is to be the signal again."""
    try:
        yield
    except ImportError as error:
        if isinstance(error.__cause__, KeyboardInterrupt | Terminated):
            raise error.__cause__ from None
        raise


def _raise_on_sigterm(number: int, frame: types.FrameType | None) -> NoReturn:
    raise Terminated


def _is_of_file(error: click.UsageError) -> bool:
    """Whether the value that click refuses comes from a config file."""
    parameter = error.param if isinstance(error, click.BadParameter) else None
    if parameter is None or parameter.name is None or error.ctx is None:
        return False
    return error.ctx.get_parameter_source(parameter.name) is ParameterSource.DEFAULT_MAP


def _one_line(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError) and not text:
        text = "out of memory: end what else takes it, or raise the limit (ulimit -v)"
    text = text or type(error).__name__
    return " ".join(text.split())


def abandon(stream: typing.TextIO) -> None:
    """Let what a stream cannot take vanish, or else Python tries again when it ends, and complains."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
