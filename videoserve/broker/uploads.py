"""Files that are stored before a job names them: nobody may take them meanwhile for files that no job needs."""

from typing import Final

from videoserve.broker.calls import Calls

# Longer than a request lives from its first picture to its job, and a worker from a result to its record.
HOLD_S: Final = 600.0


class UploadCalls(Calls):
    async def hold(self, sha256: str, hold: str, *, hold_s: float = HOLD_S) -> None:
        """Counts the file as needed until `submit` or `finish` has the same `hold`, at most for `hold_s` seconds.

        Call it before the file is put, or put it again after: whoever freed it earlier may be about to delete it.
        `hold` is any text without spaces that is no job's id.
        """
        await self._link.transition("hold", once=False, sha=sha256, hold=hold, seconds=hold_s)
