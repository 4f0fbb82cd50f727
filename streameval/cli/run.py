"""Run the daemon with its HTTP server until it is stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from streameval.cli.terminal import warn
from streameval.errors import InputError
from streameval.service.process import hangup_handler, make_responsive, return_large_arrays, watching

if TYPE_CHECKING:
    from streameval.service.daemon import DaemonLoop


def run_daemon(
    path: Path,
    engine: str | None,
    backfill: str | None,
    reset: bool,
    reset_policies: Sequence[str],
    logging: tuple[str, str],
    watch_config: bool = False,
) -> None:
    """Run the daemon until it is stopped.

    Args:
        path: the configuration
        engine: KIND:MASTER of an engine, None to evaluate in this process
        backfill: where the history for new candidates starts
        reset: start from zero events
        reset_policies: policies to reset
        logging: lowest level and format of the log
        watch_config: reload the configuration whenever its file changes

    Raises:
        InputError: The configuration or an argument is wrong, or the state does not fit it.
        SourceError: The source cannot continue.
    """
    return_large_arrays()
    asked_at_start = Event()
    reload: Callable[[], object] = asked_at_start.set
    with ExitStack() as stack:
        stack.enter_context(hangup_handler(lambda: reload()))  # from here on a SIGHUP does not end the process
        if watch_config:
            stack.enter_context(watching(path, lambda: reload()))
        from streameval.config.engine import engine_variables
        from streameval.config.model import Config
        from streameval.service.http.auth import Security
        from streameval.service.http.server import HttpServer
        from streameval.service.logging import configure_logging, warn_if_uncompiled

        variables = os.environ | ({} if engine is None else engine_variables(engine))
        settings = Config.load(path, variables)
        source = settings.required_source()
        configure_logging(*logging)
        warn_if_uncompiled()
        warn(settings)
        start = None if backfill is None else source.backfill_start(backfill)
        daemon: DaemonLoop[Any]
        if settings.engine is None:
            from streameval.service.startup import daemon as daemon_of

            daemon = daemon_of(path, settings, start, reset=reset, reset_policies=reset_policies)
        else:
            from streameval.engines.daemon import daemon as daemon_on_engine

            _refuse_with_engine(backfill=backfill, reset_policy=reset_policies)
            daemon = daemon_on_engine(settings, reset=reset, load=lambda: Config.load(path, variables))
        server = HttpServer(daemon, settings.http.host, settings.http.port, Security(settings.http))
        reload = daemon.reload
        if settings.otlp is not None:
            from streameval.service.otlp import OtlpPush  # an extra

            stack.enter_context(OtlpPush(daemon, settings.otlp, settings.daemon_name))
        with server:
            make_responsive()
            if asked_at_start.is_set():
                daemon.reload()
            daemon.run()


def _refuse_with_engine(**options: object) -> None:
    """Refuse options that an engine does not support.

    Raises:
        InputError: One is set.
    """
    for name, value in options.items():
        if value:
            hint = "leave the option or the engine out; --reset starts all policies from zero"
            raise InputError(f"--{name.replace('_', '-')}: found an engine, which cannot do that", hint=hint)
