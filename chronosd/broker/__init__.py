"""Everything that is said to Redis, without I/O.

An operation is a function that returns a :class:`~chronosd.broker.commands.Command`: the script, its keys and
arguments, and how to read the reply. Two small runners send commands, one for synchronous and one for
asynchronous callers, so no operation is written twice. A step that has to look before it writes (it must
rewrite a message, which no script ever parses) is a generator of commands that either runner drives.

The scripts in ``lua/`` hold the invariants. Every move of a task out of "running" begins with XACK and goes
on only if that returned 1: nobody else has moved the entry meanwhile. Recovery gives a task a new entry, so
whoever still runs the old one can no longer end the new run.
"""
