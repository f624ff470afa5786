"""The web process: health checks, metrics and a page for people. It only shows, and asks nobody.

All that it serves it reads from the page that the supervisor fills (:mod:`chronosd.page`): Redis, the control
socket and the workers are none of its business, so nothing that a browser or a scraper does reaches them. It
can be killed at any time; the supervisor forks the next one, which gets the same socket.

``app`` is the process and its routes, ``metrics`` the exposition for Prometheus, ``rates`` the rates that the
dashboard shows.
"""
