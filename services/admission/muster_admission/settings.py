"""What admission reads from the environment beside what every service reads."""

from __future__ import annotations

import dataclasses

from muster.runtime.backpressure import BACKLOG_MESSAGES_MAX
from muster.runtime.settings import CommonSettings, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdmissionSettings(CommonSettings):
    """All settings of the service."""

    tokens_file: str = setting("file of 'token user' lines; unset: everybody is anonymous@<peer>", "")
    inbox_backlog_max: int = setting(
        "inbox messages that may wait before commands are refused", BACKLOG_MESSAGES_MAX, minimum=1
    )
    decide_timeout_ms: int = setting("how long a call waits for the cell to decide", 10_000, minimum=1)
    read_timeout_ms: int = setting("how long a read waits for its inbox position (LOG-12)", 2_000, minimum=1)
    watch_buffer_events: int = setting("events kept for a slow watcher before it is cut", 10_000, minimum=1)
