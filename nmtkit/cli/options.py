"""From option dataclasses to click: flags, `--help` under headings, `--config FILE`, exit codes.

    @command("nmt-average")
    @options(average=AverageConfig)
    def main(average: AverageConfig) -> None: ...

Every field of `AverageConfig` becomes a flag, and the command gets the finished, range-checked object.
"""

import contextlib
import dataclasses
import difflib
import errno
import functools
import json
import os
import signal
import sys
import time
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from click.core import ParameterSource

from nmtkit.config import Config, flag
from nmtkit.errors import NmtkitError, RunError, SaidElsewhere, UserError
from nmtkit.log import logger
from nmtkit.version import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

F = TypeVar("F", bound=Callable[..., Any])
COMMON = "Common options"
_SECONDS_TO_SPEAK = 2.0
_NAMES_NO_FILE = (errno.ENAMETOOLONG, errno.EACCES, errno.ENOTDIR, errno.ELOOP)
_NEAR = 0.75  # difflib's ratio from which on a word may have been meant; at its own 0.6 --path is near to --split
_MANY = 8  # words of one beginning that are told one by one
_NOT_IN_A_FILE = ("config", "version")
_ONCE = ("input", "output", "config")  # of others the last counts; of these, the first one's file would be passed over


class PathName(click.Path):
    """The name of a file or folder, whether it exists or not; an empty one, Python's current folder, is refused."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        if value == "":
            self.fail("the name is empty; was a variable of the shell not set?", parameter, context)
        return super().convert(value, parameter, context)


class Choice(click.Choice):  # type: ignore[type-arg]  # click has had the argument since 8.4 only
    """One of a few words; `_` stands for `-` in them and the other way round, as in the names of options."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        words = {word.replace("_", "-"): word for word in self.choices}
        spelled = str(value).replace("_", "-")
        if spelled not in words:
            near = _did_you_mean(str(value), self.choices)
            self.fail(f"{value!r} is not one of {_listed(self.choices)}.{near}", parameter, context)
        return words[spelled]


class ConfigOption(click.Option):
    """A flag made from a dataclass field; remembers the heading that `--help` shows it under."""

    def __init__(self, *args: Any, heading: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading


def options(*adjust: Callable[[dict[str, Any]], None], **groups: type[Config]) -> Callable[[F], F]:
    """Give a command the flags of each config class, and hand it one object per class, by keyword.

    Before the objects are made, each function of `adjust` may change the dict of all option values.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(**values: Any) -> Any:
            for change in adjust:
                change(values)
            made = {name: _build(config, values) for name, config in groups.items()}
            return function(**made, **values)

        for config in reversed(groups.values()):
            for field in reversed(dataclasses.fields(config)):
                if "bounds" in field.metadata:
                    _flag_for(field, config)(wrapper)
        return typing.cast(F, wrapper)

    return decorate


def given(name: str) -> bool:
    """Whether the user set option `name`, on the command line or in the `--config` file."""
    source = click.get_current_context().get_parameter_source(name)
    return source in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


def in_file(name: str) -> Any:
    """The value of option `name` in the `--config` file; None where there is none."""
    return (click.get_current_context().default_map or {}).get(name)


def refuse_idle(names: Iterable[str], reason: str) -> None:
    """Raise UserError if the user set one of these options, which have no effect, for this `reason`.

    A default value in a `--config` file is let pass: the options.json that a run writes names every option.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        if parameter.name not in names or not given(parameter.name):
            continue
        value = context.params[parameter.name]
        from_file = context.get_parameter_source(parameter.name) is ParameterSource.DEFAULT_MAP
        if not (from_file and value == parameter.default):
            spellings = parameter.secondary_opts if value is False else parameter.opts
            raise UserError(f"{spellings[-1]} has no effect {reason}")


def reads_terminal() -> bool:
    """Whether stdin, which is going to be read, is a terminal; one who did not mean it is told what is waited for."""
    if not sys.stdin.isatty():
        return False
    logger.info("reading from the terminal: Enter ends a line, Ctrl-D the text")
    return True


def _build(config: type[Config], values: dict[str, Any]) -> Config:
    names = [field.name for field in dataclasses.fields(config) if "bounds" in field.metadata]
    return config(**{name: values.pop(name) for name in names})


def _flag_for(field: "dataclasses.Field[Any]", config: type[Config]) -> Callable[[F], F]:
    """The click option of one dataclass field. Ranges are checked by the config itself, in one place."""
    kind, optional, multiple = _kind(typing.get_type_hints(config)[field.name])
    choices, words = field.metadata["choices"], field.metadata["words"]
    spelling = flag(field.name)
    if kind is bool:
        spelling += "/" + flag(field.metadata["off"] or f"no_{field.name}")
    short = [f"-{field.metadata['short']}"] if field.metadata["short"] else []
    return click.option(
        *short,
        spelling,
        field.name,
        cls=ConfigOption,
        heading=config.heading,
        type=_converter(kind, choices, words),
        default=None if multiple else field.default,
        multiple=multiple,
        show_default=field.metadata["unset"] or (not optional and field.default not in ("", ())),
        metavar=field.metadata["metavar"],
        help=field.metadata["help"],
    )


def _converter(kind: type, choices: Sequence[str], words: dict[str, float]) -> Any:
    """What makes the value of an option out of its text, for click."""
    if choices:
        return Choice(choices)
    if words:
        return _number_or_word(kind, words)
    return PathName() if kind is Path else kind


def _number_or_word(kind: type, words: dict[str, float]) -> Callable[[Any], Any]:
    """A conversion for click: of a number, or of a word that stands for one."""

    def convert(value: Any) -> Any:
        try:
            return words[value] if value in words else kind(value)
        except ValueError:
            raise click.BadParameter(f"{value!r} is neither a number nor {' or '.join(words)}.") from None

    convert.__name__ = "|".join(["number", *words])
    return convert


def _kind(annotation: Any) -> tuple[Any, bool, bool]:
    """(type of one value, may be None, may be given several times) of a field's annotation."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        return arguments[0], False, True
    if isinstance(annotation, types.UnionType):
        (kind,) = [argument for argument in arguments if argument is not type(None)]
        return kind, True, False
    return annotation, False, False


def _read_config_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Make the values of `--config FILE` the command's defaults, so that the command line wins."""
    if path is None:
        return
    try:
        text = path.read_text(encoding="utf-8-sig")  # as some editors begin a file with the mark of its encoding
        is_json = path.suffix == ".json" or text.lstrip().startswith("{")  # as no TOML does
        values = json.loads(text) if is_json else tomllib.loads(text)
    except OSError as error:
        raise UserError(f"--config {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"--config {path}: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"--config {path}: a table of options is expected")
    known = {parameter.name: parameter for parameter in context.command.params if parameter.name not in _NOT_IN_A_FILE}
    defaults: dict[str, Any] = {}
    for key, value in _options_in(values):
        if key not in known:
            near = _did_you_mean(flag(key), [flag(str(name)) for name in known])
            raise UserError(
                f"--config {path}: {context.command.name} has no option {flag(key)} that a file can set.{near}"
            )
        if key in defaults:
            raise UserError(f"--config {path}: {flag(key)} stands there twice")
        defaults[key] = _as_on_command_line(known[key], value, path)
    context.default_map = defaults


def _options_in(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The options of a config file, which may stand in tables, as a run's options.json has them; null is not given."""
    for key, value in values.items():
        for name, one in value.items() if isinstance(value, dict) else [(key, value)]:
            if one is not None:
                yield name.replace("-", "_"), one


def _as_on_command_line(parameter: click.Parameter, value: Any, path: Path) -> Any:
    """A value of a config file in the form that click converts and checks like one on the command line."""
    if getattr(parameter, "multiple", False):
        values = value if isinstance(value, list) else [value]
    else:
        values = [value]
    switch = getattr(parameter, "is_flag", False)
    for one in values:
        if isinstance(one, bool) != switch or not isinstance(one, bool | int | float | str):
            wanted = "true or false" if switch else "a number or a text"
            found = json.dumps(one, default=str)  # TOML has dates
            raise UserError(f"--config {path}: {flag(str(parameter.name))} takes {wanted}, not {found}")
        if isinstance(one, str) and not _is_text(one):
            raise UserError(f"--config {path}: {flag(str(parameter.name))}: {json.dumps(one)} is no text")
    if switch:
        return value
    return [str(one) for one in values] if getattr(parameter, "multiple", False) else str(value)


def _note_debug(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    typing.cast(Command, context.command).debug |= value


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
                callback=_read_config_file,
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
        if sys.stdin is None:  # closed by the caller (<&-): there is nothing to read
            sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123
        if sys.stderr is None:
            return UserError.exit_code
        try:
            if sys.stdout is None:
                raise UserError("stdout is closed")
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
        except SaidElsewhere as error:
            return _let_another_speak(error.exit_code)
        except (NmtkitError, OSError, MemoryError) as error:
            code = UserError.exit_code if getattr(error, "errno", None) in _NAMES_NO_FILE else RunError.exit_code
            return self._report(_one_line(error), getattr(error, "exit_code", code))
        return 0

    def _complaint(self, error: click.UsageError) -> str:
        """What is wrong with the command line."""
        if isinstance(error, click.NoSuchOption):  # click's own suggestions come from far away
            flags = [spelling for parameter in self.params for spelling in (*parameter.opts, *parameter.secondary_opts)]
            return f"No such option {error.option_name}.{_did_you_mean(error.option_name, flags)}"
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
        if self.debug:
            traceback.print_exc()
        with contextlib.suppress(OSError):  # the exit code tells it all the same
            click.echo(f"{self.name}: {'' if rank == '0' else f'rank {rank}: '}{message}", err=True)
        return code


def _check_text(arguments: Sequence[str]) -> None:
    """Refuse what is no text before the work: no checkpoint can name it, and torch opens no file that is called so."""
    for word in arguments:
        if not _is_text(word):
            shown, encoding = os.fsencode(word).decode("ascii", "backslashreplace"), sys.getfilesystemencoding().upper()
            raise UserError(f"{shown}: not {encoding}: rename the file, or write it otherwise")


def _is_text(word: str) -> bool:
    """Whether a file can be called so: with no NUL and no half of a surrogate pair, which Python has for odd bytes."""
    return "\0" not in word and word.encode(errors="replace").decode() == word


def abandon(stream: typing.TextIO) -> None:
    """Let what a stream cannot take vanish, or else Python tries again when it ends, and complains."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


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


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    """What to add to a complaint of a word that is not known: those that are near, if there are any."""
    near = difflib.get_close_matches(word, known, cutoff=_NEAR)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _listed(words: Sequence[str]) -> str:
    """All of some words; many that begin alike, up to the first `_`, as a shell would put them: table3_{a_h1,a_h4}."""
    by_beginning: dict[str, list[str]] = {}
    for word in words:
        by_beginning.setdefault(word.partition("_")[0], []).append(word)
    for beginning, alike in by_beginning.items():
        if len(alike) > _MANY:
            ends = ",".join(word.removeprefix(f"{beginning}_") for word in alike)
            by_beginning[beginning] = [f"{beginning}_{{{ends}}}"]
    return ", ".join(word for alike in by_beginning.values() for word in alike)


def _one_line(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError) and not text:
        text = "out of memory: end what else takes it, or raise the limit (ulimit -v)"
    text = text or type(error).__name__
    return " ".join(text.split())


def command(name: str, **settings: Any) -> Callable[[Callable[..., Any]], Command]:
    """Like `click.command`, with nmtkit's help layout, common options and exit codes."""
    settings.setdefault("context_settings", {"help_option_names": ["-h", "--help"], "max_content_width": 110})
    return click.command(name, cls=Command, **settings)
