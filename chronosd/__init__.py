"""chronosd runs task queues kept in Redis or Valkey, and never loses a task.

What an application needs is here; everything is imported on first use (PEP 562). The daemon relies on that:
``chronosd run`` must be catching signals before it has imported anything of weight.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chronosd.client import AsyncClient as AsyncClient
    from chronosd.client import Client as Client
    from chronosd.client import TaskInfo as TaskInfo
    from chronosd.errors import BrokerError as BrokerError
    from chronosd.errors import BrokerRefused as BrokerRefused
    from chronosd.errors import BrokerUnavailable as BrokerUnavailable
    from chronosd.errors import ChronosError as ChronosError
    from chronosd.errors import ConfigError as ConfigError
    from chronosd.errors import DuplicateTask as DuplicateTask
    from chronosd.errors import EnqueueError as EnqueueError
    from chronosd.errors import InvalidTask as InvalidTask
    from chronosd.errors import MessageError as MessageError
    from chronosd.errors import PayloadTooLarge as PayloadTooLarge
    from chronosd.errors import ResultTimeout as ResultTimeout
    from chronosd.errors import RetryIn as RetryIn
    from chronosd.errors import SkipRetry as SkipRetry
    from chronosd.errors import TaskActive as TaskActive
    from chronosd.errors import TaskFailed as TaskFailed
    from chronosd.errors import TaskIdConflict as TaskIdConflict
    from chronosd.errors import TaskNotFound as TaskNotFound
    from chronosd.inspector import Inspector as Inspector
    from chronosd.kinds import Kind as Kind
    from chronosd.states import State as State
    from chronosd.task import Task as Task
    from chronosd.workflows import Chain as Chain
    from chronosd.workflows import ChainInfo as ChainInfo
    from chronosd.workflows import Group as Group
    from chronosd.workflows import GroupInfo as GroupInfo

_HOME = {
    "AsyncClient": "client",
    "BrokerError": "errors",
    "BrokerRefused": "errors",
    "BrokerUnavailable": "errors",
    "Chain": "workflows",
    "ChainInfo": "workflows",
    "ChronosError": "errors",
    "Client": "client",
    "ConfigError": "errors",
    "DuplicateTask": "errors",
    "EnqueueError": "errors",
    "Group": "workflows",
    "GroupInfo": "workflows",
    "Inspector": "inspector",
    "InvalidTask": "errors",
    "Kind": "kinds",
    "MessageError": "errors",
    "PayloadTooLarge": "errors",
    "ResultTimeout": "errors",
    "RetryIn": "errors",
    "SkipRetry": "errors",
    "State": "states",
    "Task": "task",
    "TaskActive": "errors",
    "TaskFailed": "errors",
    "TaskIdConflict": "errors",
    "TaskInfo": "client",
    "TaskNotFound": "errors",
}

__all__ = [
    "AsyncClient",
    "BrokerError",
    "BrokerRefused",
    "BrokerUnavailable",
    "Chain",
    "ChainInfo",
    "ChronosError",
    "Client",
    "ConfigError",
    "DuplicateTask",
    "EnqueueError",
    "Group",
    "GroupInfo",
    "Inspector",
    "InvalidTask",
    "Kind",
    "MessageError",
    "PayloadTooLarge",
    "ResultTimeout",
    "RetryIn",
    "SkipRetry",
    "State",
    "Task",
    "TaskActive",
    "TaskFailed",
    "TaskIdConflict",
    "TaskInfo",
    "TaskNotFound",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("chronosd")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'chronosd' has no attribute {name!r}")
    value = getattr(import_module(f"chronosd.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
