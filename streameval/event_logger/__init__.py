"""Write the decisions and rewards of a recommender, in its process.

Names are imported at their first use, so that the other names of `streameval` do not load this package.
"""

from typing import TYPE_CHECKING

from streameval.common.lazy import lazily

if TYPE_CHECKING:
    from streameval.event_logger.logger import Counts, EventLogger
    from streameval.event_logger.sinks import Message, MessageSink

__all__ = ["Counts", "EventLogger", "Message", "MessageSink"]

if not TYPE_CHECKING:
    __getattr__ = lazily(globals(), __all__, ("logger", "sinks"))
