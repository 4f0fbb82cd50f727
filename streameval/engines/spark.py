"""Run Apache Spark as the engine: a batch is a job, and each of its tasks has one or several ranges of offsets."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

import structlog
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException

from streameval.config.engine import SparkSettings
from streameval.engines.ranges import RangeGone, RangeResult, RangeTask, evaluate
from streameval.errors import ConfigError, StreamevalError
from streameval.ingest.kafka.client import ClientError
from streameval.service.process import COLLECT_AFTER

GROUP = "streameval"
DISMISSED = "killed by driver"
"""Occur in the reason that Spark gives for the end of an executor that it no longer needs."""
DEFAULTS = {
    "spark.app.name": "streameval",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # Java only passes bytes on
    "spark.executorEnv.OPENBLAS_NUM_THREADS": "1",
    "spark.ui.showConsoleProgress": "false",
}

log = structlog.get_logger(__name__)


class Spark:
    """Run the tasks of a batch as one Spark job. Spark repeats the tasks of executors that end."""

    def __init__(self, settings: SparkSettings) -> None:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs each connection
        conf = SparkConf()
        if settings.master is not None:
            conf.setMaster(settings.master)
        for name, default in DEFAULTS.items():
            conf.setIfMissing(name, default)
        for name, option in settings.options.items():
            conf.set(name, str(option).lower() if isinstance(option, bool) else str(option))
        try:
            self._context = SparkContext(conf=conf)
        except Py4JJavaError as error:  # Java has refused a setting
            hint = "set engine.master, and check that its Spark is of the version of pyspark"
            raise ConfigError(f"engine: Spark cannot be started: {_reason(error)}", hint=hint) from error
        except (PySparkException, Py4JError, OSError) as error:  # systemd starts the program again
            hint = "its memory may be too small, or Java is not installed; the log of Java is above"
            raise StreamevalError(f"engine: Java ended while Spark started: {_reason(error)}", hint=hint) from error
        self._context.setLogLevel("ERROR")
        self._lost: set[str] = set()
        self._parent, self._process = os.getppid(), getattr(self._context._gateway, "proc", None)
        log.info("engine_started", kind="spark", master=self._context.master, version=self._context.version)

    def run(self, tasks: Sequence[RangeTask]) -> list[RangeResult | RangeGone]:
        try:
            self._context.setJobGroup(GROUP, f"{len(tasks)} ranges of offsets")
            slices = min(len(tasks), self._context.defaultParallelism)
            results = self._context.parallelize(tasks, slices).map(_evaluated).collect()
            self._note_lost()
        except (PySparkException, Py4JError, OSError) as error:
            raise ClientError(_reason(error)) from error
        return list(results)

    def cancel(self) -> None:
        with suppress(Py4JError, OSError):  # it may have ended
            self._context.cancelJobGroup(GROUP)

    def executors_lost(self) -> int:
        return len(self._lost)

    def has_ended(self) -> bool:
        """Tell whether Java has ended.

        Java is a child process of this one, or it is spark-submit, the parent process, which passes no signal on.
        """
        return os.getppid() != self._parent if self._process is None else self._process.poll() is not None

    def _note_lost(self) -> None:
        """Remember the executors that have ended, because Spark forgets them in time."""
        executors = self._context._jsc.sc().statusStore().executorList(False)
        for index in range(executors.size()):
            executor = executors.apply(index)
            if not executor.isActive() and DISMISSED not in str(executor.removeReason()):
                self._lost.add(executor.id())

    def close(self) -> None:
        with suppress(Py4JError, OSError):  # a signal to the process group has ended Spark already
            self._context.stop()


def _evaluated(task: RangeTask) -> RangeResult | RangeGone:
    result = evaluate(task)
    _collect_less()
    return result


@cache
def _collect_less() -> None:
    """Let the garbage collector rarely walk over messages, which leave no cycles, and never over loaded modules.

    Spark also calls the collector after each task.
    """
    gc.set_threshold(*COLLECT_AFTER)
    gc.freeze()


def _reason(error: Exception) -> str:
    """Return the last line of an error of an executor or of Spark."""
    lines = [line.strip() for line in str(error).splitlines()]
    ours = [line for line in lines if "Error: " in line and not line.startswith("at ")]
    return (ours or lines)[-1]
