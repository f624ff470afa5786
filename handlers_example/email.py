"""Sends e-mail: an async handler that waits for a network.

With ``$SMTP_HOST`` set (``host`` or ``host:port``) it talks to that server; without, it only logs, so that
the example runs anywhere.

Called twice for one task, it sends twice: SMTP knows no transaction that Redis could join. But both copies
carry the same Message-ID, made from ``task.id``, and most mailboxes show such a pair once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import smtplib
from dataclasses import dataclass
from email.message import EmailMessage

from chronosd import SkipRetry, Task

log = logging.getLogger(__name__)

TIMEOUT_S = 20.0


@dataclass
class Email:
    """What a producer enqueues: ``chronosd enqueue email:send '{"to": "a@b.c"}'``."""

    to: str
    subject: str = "Hello"
    body: str = "Hello from chronosd.\n"


async def send_email(task: Task[Email]) -> None:
    """Sends one message."""
    message = compose(task.args, message_id=f"<{task.id}@chronosd.example>")
    host = os.environ.get("SMTP_HOST")
    if host:
        await deliver(message, host)
    # the line carries the task's id, kind, queue and attempt: they are bound to the context
    log.info("sent" if host else "would be sent (SMTP_HOST is not set)")


def compose(email: Email, message_id: str) -> EmailMessage:
    """The message, or SkipRetry: an address that is none today is none tomorrow."""
    user, at, domain = email.to.rpartition("@")
    if not (user and at and domain) or any(c.isspace() for c in email.to):
        raise SkipRetry(f"not an address: {email.to!r}")
    message = EmailMessage()
    message["From"] = os.environ.get("SMTP_FROM", "chronosd@localhost")
    message["To"] = email.to
    message["Subject"] = email.subject
    message["Message-ID"] = message_id
    message.set_content(email.body)
    return message


async def deliver(message: EmailMessage, host: str) -> None:
    """Hands the message to a mail server; what it refuses for good is not tried again."""
    try:
        # smtplib blocks: in a thread it holds up none of the other tasks of this worker
        await asyncio.to_thread(_deliver, message, host)
    except smtplib.SMTPRecipientsRefused as exc:
        codes = [code for code, _ in exc.recipients.values()]
        if all(code >= 500 for code in codes):
            raise SkipRetry(f"recipient refused: {codes}") from exc
        raise  # 4xx is "later, please": a retry with backoff is what that asks for
    except smtplib.SMTPResponseException as exc:
        if exc.smtp_code >= 500:
            raise SkipRetry(f"mail server said {exc.smtp_code}") from exc
        raise


def _deliver(message: EmailMessage, host: str) -> None:
    name, _, port = host.partition(":")
    with smtplib.SMTP(name, int(port or 25), timeout=TIMEOUT_S) as server:
        server.send_message(message)
