"""One piece of work in a thread while training goes on; what goes wrong in it comes out where it is waited for."""

import threading
import time
from collections.abc import Callable


class Background:
    """Work that has been started; `wait` ends it."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.seconds = 0.0
        """How long the work took, once it is waited for."""
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(name=name, target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether the work still goes on."""
        return self._thread.is_alive()

    def wait(self) -> BaseException | None:
        """Wait until the work is over; what went wrong in it, or None."""
        self._thread.join()
        return self._error

    def _run(self) -> None:
        began = time.perf_counter()
        try:
            self._work()
        except BaseException as error:
            self._error = error
        self.seconds = time.perf_counter() - began
