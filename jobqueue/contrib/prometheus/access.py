"""Who may read the metrics: whoever has the token; without one, this machine alone."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

from django.http import HttpRequest
from django.http.request import split_domain_port
from django.utils.crypto import constant_time_compare

from jobqueue import conf

#: How the headers begin that proxies add. Behind one, the loopback address is the proxy's.
_OF_PROXIES = ("forwarded", "x-forwarded", "x-real-ip", "x-client-ip", "x-cluster", "via")


def is_allowed(request: HttpRequest) -> bool:
    """Whether the request has the token or, where none is set, comes from this machine itself."""
    token = conf.get().METRICS_TOKEN
    return _has(token, request) if token else _is_from_here(request)


def _has(token: str, request: HttpRequest) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return scheme.lower() == "bearer" and constant_time_compare(given.strip(), token)


def _is_from_here(request: HttpRequest) -> bool:
    """Whether client and server name the loopback, and nobody says that he hands the request on.

    The name of the server counts, too: it is the public one behind a proxy that adds no header,
    and a foreign one when a page in a browser on this machine asks.
    """
    if any(name.lower().startswith(_OF_PROXIES) for name in request.headers):
        return False
    host, _ = split_domain_port(request.headers.get("Host", ""))
    is_here = host == "localhost" or _is_loopback(host.strip("[]"))
    return is_here and _is_loopback(request.META.get("REMOTE_ADDR") or "")


def _is_loopback(text: str) -> bool:
    try:
        address: IPv4Address | IPv6Address = ip_address(text)
    except ValueError:  # a Unix socket has none
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
