"""The lease of a folder in an object store, which has no locks: an object that names the job,
renewed by a thread.

A job that finds another one's lease waits until it is renewed, which says that the other job runs,
or until it has not been for some time. No clock is compared. See `docs/decisions/checkpoints.md`
for its limits.
"""

import json
import os
import threading
import time
import uuid
from typing import Any

from ...core import messages
from .all_or_none import SaveError
from .places import UrlPath
from .step_saving import now, this_job

NAME = ".lease"
PERIOD = 15.0  # seconds from one renewal to the next
_PATIENCE = 2.5  # periods without a renewal, after which a job is taken for dead

_leases: dict[tuple[str, int], "_Lease"] = {}  # by folder and process (a fork inherits none)


class _Lease:
    """A lease that this process holds, until it is lost to another job."""

    def __init__(self, file: UrlPath) -> None:
        self.file, self.is_lost = file, False
        self._words = {"token": uuid.uuid4().hex, **this_job()}

    def write(self) -> None:
        renewed = {"renewed": now(), "renewal": uuid.uuid4().hex}
        self.file.write_bytes(json.dumps(self._words | renewed).encode() + b"\n")

    def check(self) -> None:
        """Raises SaveError where another job has taken the folder."""
        lease = _read(self.file)
        if lease is not None and lease.get("token") != self._words["token"]:
            self.is_lost = True
            raise SaveError(
                f"{self.file.parent} was taken by another job while this one was silent for a "
                f"long time: {_owner(lease)}. Give each job a folder of its own, or end that one"
            )

    def renew(self) -> None:
        self.check()
        self.write()

    def keep(self, key: tuple[str, int]) -> None:
        """Renews the lease for as long as this process has it."""
        while True:
            time.sleep(PERIOD)
            if self.is_lost or _leases.get(key) is not self:
                return
            try:
                self.renew()
            except Exception as error:
                # the next renewal, or the next save, may succeed; a lost lease is its error
                messages.say(f"the lease of {self.file.parent} is not renewed: {error}", "lease")


def _read(file: UrlPath) -> dict[str, Any] | None:
    file.fs.invalidate_cache()
    try:
        lease = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        return {}
    return lease if isinstance(lease, dict) else {}  # another program's object


def _owner(job: dict[str, Any]) -> str:
    facts = {name: job[name] for name in ("process", "host", "command", "since") if name in job}
    return json.dumps(facts) if facts else "its owner is not known"


def take(folder: UrlPath) -> None:
    """Takes a folder for this process; raises SaveError that names the job that has it.

    Where the last job was killed it takes `_PATIENCE` periods to know that.
    """
    key = str(folder), os.getpid()
    lease = _leases.get(key)
    if lease is not None:
        lease.renew()
        return
    folder.mkdir()
    file = folder / NAME
    old_lease = _read(file)
    if old_lease is not None:
        _wait_for_death(folder, file, old_lease)
    result = _Lease(file)
    result.write()
    # two jobs that start at the same moment: the later one has written over the other
    result.check()
    _leases[key] = result
    threading.Thread(target=result.keep, args=(key,), name="spmd-lease", daemon=True).start()


def _wait_for_death(folder: UrlPath, file: UrlPath, old_lease: dict[str, Any]) -> None:
    """Returns when a lease is not renewed any more; raises SaveError when it is."""
    wait = _PATIENCE * PERIOD
    messages.say(
        f"{folder}: waiting {wait:.0f} s for a sign of the job that saved there: "
        f"{_owner(old_lease)}",
        "lease",
    )
    end = time.monotonic() + wait
    while time.monotonic() < end:
        time.sleep(PERIOD / 5)
        lease = _read(file)
        if lease is None:
            return
        if lease != old_lease:
            raise SaveError(
                f"{folder} belongs to another job, which runs: {_owner(lease)}. Give each job a "
                "folder of its own, or end that one"
            )


def check(folder: UrlPath) -> None:
    """Raises SaveError where another job has taken a folder that this process took."""
    _leases[str(folder), os.getpid()].check()
