"""One worker process: fetch, run, complete, in cycles.

A cycle is one round trip. It carries out everything that finished since the last one and brings in as many
tasks as there are free slots, so a busy worker batches by itself and an idle one adds no latency. When
every queue is empty the worker waits in a blocking read on a second connection, and the cycles go on only
for what still finishes. Behind the read goes a script that takes in what it brings: an idle worker starts
that without another round trip. Queues that are paused, or have limits, are not in that read, which claims
whatever comes: the supervisor says which are paused, and offers what may start of those with limits.

While a reply is under way the handlers of what the one before has brought are run, so that worker and server
work at the same time.

``fetch`` is the loop, ``cycle`` what a round trip carries, ``replies`` what comes of it, ``main`` the
process. What they share, the runs and all that waits, is ``held``. On its way a task meets ``pick`` (which
queue to ask for how much) and ``pace`` (how far ahead) or ``blocking`` (waiting for any), ``intake`` (from
an entry to a ``run`` in the buffer), ``starter`` (when it starts) with ``patience`` (how long it waits to run
alone), ``execute`` and ``threads`` (its handler, and what that does as an outcome), and ``complete`` (the
outcome as a move). ``doubt`` asks what is still owned after trouble; ``trouble`` says how long Redis, or one
queue of it, is left alone; ``suspended`` where handlers are that no stack shows.
"""
