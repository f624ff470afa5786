"""The supervisor: one process, one thread, no event loop, no handler code.

What it waits for comes through one selector: the signal wake-up descriptor, one pidfd and one link per
worker, the pipe of a probe child; the only other thing that wakes it is the earliest timer. Nothing it does
in between may take longer than a bounded round trip to Redis (1 s), so that a death is reaped, SIGTERM
obeyed and the watchdog fed whatever Redis does.

::

    main.py          puts the pieces together; exit codes
    loop.py          the loop: signals, deaths, timers -> handle_<name>
    descriptors.py   what is waited for, and who handles it
    fleet.py         the workers: gate, restart, drain, kill, how many there are
    spawn.py         makes one of them
    worker.py        one of them, as the supervisor knows it
    orders.py        what can be asked of the daemon, by signal or over the control socket
    control.py       the control socket; answers.py: what it is asked
    status.py        how things stand; measures.py: with what has been counted, for top and doctor
    reload.py        from an edited file to a generation of workers that runs it, or back
    preflight.py     tries a changed configuration in a child that is thrown away
    leftovers.py     what a change would leave in Redis with nobody to run it
    recycle.py       workers replaced one at a time
    process.py       fork and what a child must do first
    signals.py       caught before anything else is imported
    restarts.py      how long to wait before a worker is replaced (pure)
    rounds.py        all work against Redis, and in which order
    steps.py         timed work against Redis, one round trip at a time; tenths.py: at which instants
    availability.py  whether Redis is there; asks through a throwaway child while it is not
    incarnation.py   the lock and the boards of this run
    inheritance.py   those of dead runs before it
    recovery.py      settles what dead workers left
    deaths.py        what there is to say of a death; verdict.py: who is to blame for it (pure)
    overrun.py       tasks past their deadline and loops that stand still
    stacks.py        Python stacks of a worker, also of a hung or dead one
    names.py         which task an entry is, for what is reported
    serving.py       which queues are served, and whether they may be fetched from
    groundwork.py    queues, groups, the server's clock
    pauses.py        which queues are paused
    limits.py        looks for work in queues with limits
    lease.py         the heartbeat of every entry on the boards
    forwarder.py     moves due tasks into the streams
    recoverer.py     takes over what other hosts' dead left
    strays.py        hands back what a live worker has and will not start
    cancels.py       tells workers which of their tasks somebody has cancelled
    janitor.py       bounds what is archived and completed
    scheduler.py     fires schedules; misfire.py decides what becomes of times that are noticed late
    announcer.py     tells other daemons of this one
    keeper.py        the embedded server
    web.py           the web process
    publisher.py     fills the page that it serves; gauges.py: reads the queues for it
    totals.py        counters of the dead, and what is counted in their place; told.py: what is logged of it
    burst.py         whether anything is left to do
    report.py        what systemd is told
    notify.py        systemd's notification protocol

Work against Redis is written as generators of commands: each ``yield`` is one round trip, and between any
two of them the loop comes back to its selector. That is the whole concurrency model.
"""
