"""What ``handlers:`` of a test's chronos.yaml says; apart from the handlers, which only workers import."""

_NAMES = ("count", "sync", "block", "die", "noop", "wrong")

KINDS = {name: f"tests.support.jobs:{name}" for name in _NAMES}
