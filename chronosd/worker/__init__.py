"""One worker process: fetch, run, complete, in cycles.

A cycle is one round trip. It carries out everything that finished since the last one and brings in as many
tasks as there are free slots, so a busy worker batches by itself and an idle one adds no latency. When every
queue is empty the worker waits in a blocking read on a second connection, and the cycles go on only for what
still finishes.

``pick`` decides which queue to ask for how much, ``execute`` runs handlers and turns what they do into
outcomes, ``complete`` turns outcomes into moves, ``fetch`` is the cycle, ``main`` the process.
"""
