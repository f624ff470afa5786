"""Moves the wall clock of a process and of all it forks: put this directory first on PYTHONPATH.

$CHRONOSD_TEST_CLOCK names a file of eight bytes, a double: the seconds by which the clock is ahead. It may be
written while the process runs: the clock steps. What only C code looks at (time zones, file times) stays.
"""

import mmap
import os
import struct
import time

_path = os.environ.get("CHRONOSD_TEST_CLOCK")
if _path:
    with open(_path, "rb") as _file:
        _ahead = mmap.mmap(_file.fileno(), 8, prot=mmap.PROT_READ)
    _time, _time_ns, _clock_gettime = time.time, time.time_ns, time.clock_gettime

    def _off_s() -> float:
        (off_s,) = struct.unpack("d", _ahead[:8])
        return float(off_s)

    def _shifted_clock(clock: int) -> float:
        return _clock_gettime(clock) + (_off_s() if clock == time.CLOCK_REALTIME else 0.0)

    time.time = lambda: _time() + _off_s()
    time.time_ns = lambda: _time_ns() + int(_off_s() * 1e9)
    time.clock_gettime = _shifted_clock
