"""Checks the Host and Origin headers of requests to a server without a token.

A web page that a user visits can make the browser send requests to the user's own machine. If the name of the page's server
points to 127.0.0.1 for a moment (DNS rebinding), the page could also read the answers. The browser still sends that name in Host
and Origin. Both headers must therefore contain a name of this machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from ctrbox.serve.http_head import Headers
from ctrbox.serve.refused_request import Refused


class AllowedHosts:
    """The names that requests may contain: loopback names, the address at which the server listens, and names that the user
    allows.
    """

    def __init__(self, bound: str, more: Iterable[str] = ()) -> None:
        self.names = {"localhost", bound.lower().rstrip("."), *(name.lower().strip().rstrip(".") for name in more)}

    def allows(self, authority: str) -> bool:
        name = name_of(authority)
        if name in self.names:
            return True
        try:
            return ip_address(name).is_loopback
        except ValueError:
            return False

    def check(self, headers: Headers) -> None:
        """Refuse a request that was sent to another name, or by a page of another name."""
        host = headers.get(b"host", b"").decode("latin-1")
        if host and not self.allows(host):
            raise Refused(
                403,
                f"the Host header names {host[:100]!r}, which is not a name of this machine; to allow it, start the server with "
                "--allow-host NAME",
            )
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and not self.allows(origin.partition("://")[2]):
            raise Refused(
                403,
                f"web pages from {origin[:100]!r} are not allowed to call this server; to allow them, start it with "
                "--allow-host NAME",
            )


def name_of(authority: str) -> str:
    """Return the name in ``name:port`` or ``[::1]:port``; "" if there is none."""
    if authority.startswith("["):
        name, _, rest = authority[1:].partition("]")
    else:
        name, colon, port = authority.partition(":")
        rest = colon + port
    if rest and not (rest[0] == ":" and (rest[1:].isdigit() or rest == ":")):
        return ""
    return name.lower().rstrip(".")
