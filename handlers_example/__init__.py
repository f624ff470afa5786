"""Handlers to learn from and to run: ``chronosd demo`` and the files in ``config/`` use them.

::

    email.py      async, waits for a mail server; wrong addresses are rejected at once
    images.py     sync and CPU-bound, with a typed payload; runs in a thread of the worker
    reports.py    sync, returns a result that is kept for as long as the task's retention says
    flaky.py      fails and is retried; says itself when it wants to be called again
    wrong.py      can never succeed: SkipRetry
    payments.py   has an effect that must not happen twice: idempotent by task.id
    ledger.py     middleware that writes down what was started and what was finished

A handler takes one `Task`. Returning is success, an exception is a retry with backoff, `SkipRetry` ends the
task at once. Any of them may be called again for a task that it has already worked on (its worker was
killed before the success was stored); each module says what it does about that.
"""
