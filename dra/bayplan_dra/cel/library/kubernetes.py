"""The Kubernetes libraries: quantities, versions, addresses, URLs and formats."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from bayplan.api.quantity import MAX_QUANTITY, Quantity
from bayplan_dra.cel import types as t
from bayplan_dra.cel.errors import EvaluationError
from bayplan_dra.cel.library.operators import in_range
from bayplan_dra.cel.library.registry import declare, fail
from bayplan_dra.cel.library.strings import TEXT, regex
from bayplan_dra.cel.types import list_of, map_of, optional_of
from bayplan_dra.cel.values import (
    NONE,
    CelFormat,
    Optional,
    Semver,
    normalized_semver,
)

__all__: list[str] = []

# Quantities ------------------------------------------------------------------------------------


def _quantity(text: str) -> Quantity:
    try:
        return Quantity(text)
    except ValueError:
        raise fail(
            f"quantities must match the regular expression of Kubernetes, got {text[:80]!r}"
        ) from None


def _is_quantity(text: str) -> bool:
    try:
        Quantity(text)
    except ValueError:
        return False
    return True


def _as_quantity(amount: Fraction) -> Quantity:
    if abs(amount) > MAX_QUANTITY:
        raise fail("quantity overflow")
    nano = amount * 10**9
    return Quantity(str(int(amount)) if amount.denominator == 1 else f"{int(nano)}n")


def _as_integer(quantity: Quantity) -> int:
    if quantity.amount.denominator != 1:
        raise fail("cannot convert value to integer")
    return in_range(int(quantity.amount))


def _signum(value: Any) -> int:
    return int((value > 0) - (value < 0))


_Q, _QQ = (t.QUANTITY,), (t.QUANTITY, t.QUANTITY)
declare("quantity", TEXT, t.QUANTITY, _quantity)
declare("isQuantity", TEXT, t.BOOL, _is_quantity)
declare(".sign", _Q, t.INT, lambda q: _signum(q.amount))
declare(".isInteger", _Q, t.BOOL, lambda q: q.amount.denominator == 1)
declare(".asInteger", _Q, t.INT, _as_integer)
declare(".asApproximateFloat", _Q, t.DOUBLE, lambda q: float(q.amount))
declare(".isGreaterThan", _QQ, t.BOOL, lambda a, b: a.number > b.number)
declare(".isLessThan", _QQ, t.BOOL, lambda a, b: a.number < b.number)
declare(".compareTo", _QQ, t.INT, lambda a, b: _signum(a.amount - b.amount))
declare(".add", _QQ, t.QUANTITY, lambda a, b: _as_quantity(a.amount + b.amount))
declare(".sub", _QQ, t.QUANTITY, lambda a, b: _as_quantity(a.amount - b.amount))
declare(".add", (t.QUANTITY, t.INT), t.QUANTITY, lambda a, b: _as_quantity(a.amount + b))
declare(".sub", (t.QUANTITY, t.INT), t.QUANTITY, lambda a, b: _as_quantity(a.amount - b))


# Versions --------------------------------------------------------------------------------------


def _semver(text: str, normalize: bool = False) -> Semver:
    try:
        return normalized_semver(text) if normalize else Semver(text)
    except ValueError as exc:
        raise fail(str(exc)) from None


def _is_semver(text: str, normalize: bool = False) -> bool:
    try:
        _semver(text, normalize)
    except EvaluationError:
        return False
    return True


_V, _VV = (t.SEMVER,), (t.SEMVER, t.SEMVER)
declare("semver", TEXT, t.SEMVER, _semver)
declare("semver", (t.STRING, t.BOOL), t.SEMVER, _semver)
declare("isSemver", TEXT, t.BOOL, _is_semver)
declare("isSemver", (t.STRING, t.BOOL), t.BOOL, _is_semver)
declare(".major", _V, t.INT, lambda v: v.major)
declare(".minor", _V, t.INT, lambda v: v.minor)
declare(".patch", _V, t.INT, lambda v: v.patch)
declare(".isGreaterThan", _VV, t.BOOL, lambda a, b: a > b)
declare(".isLessThan", _VV, t.BOOL, lambda a, b: a < b)
declare(".compareTo", _VV, t.INT, lambda a, b: (a > b) - (a < b))


# Addresses -------------------------------------------------------------------------------------

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


def _ip(text: str) -> Address:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise fail(f"IP Address {text[:80]!r} parse error during conversion from string") from None
    if isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped or address.scope_id):
        raise fail(f"IP Address {text[:80]!r}: IPv4-mapped addresses and zones are not allowed")
    return address


def _cidr(text: str) -> Interface:
    """Parse a network, keeping the address as written."""
    address, slash, bits = text.partition("/")
    if not slash or not (bits.isascii() and bits.isdigit()):
        raise fail(f"network address parse error during conversion from string: {text[:80]!r}")
    try:
        return ipaddress.ip_interface((_ip(address), int(bits)))
    except ValueError:
        raise fail(
            f"network address parse error during conversion from string: {text[:80]!r}"
        ) from None


def _parses(function: Callable[[str], Any]) -> Callable[[str], bool]:
    def parses(text: str) -> bool:
        try:
            function(text)
        except EvaluationError:
            return False
        return True

    return parses


def _contains_network(outer: Interface, inner: Interface) -> bool:
    if isinstance(outer, ipaddress.IPv4Interface):
        return isinstance(inner, ipaddress.IPv4Interface) and inner.network.subnet_of(outer.network)
    return isinstance(inner, ipaddress.IPv6Interface) and inner.network.subnet_of(outer.network)


def _global_unicast(address: Address) -> bool:
    special = address.is_unspecified or address.is_loopback or address.is_multicast
    return not (special or address.is_link_local or str(address) == "255.255.255.255")


_I, _C = (t.IP,), (t.CIDR,)
declare("ip", TEXT, t.IP, _ip)
declare("isIP", TEXT, t.BOOL, _parses(_ip))
declare("ip.isCanonical", TEXT, t.BOOL, lambda text: str(_ip(text)) == text)
declare(".family", _I, t.INT, lambda address: address.version)
declare(".isUnspecified", _I, t.BOOL, lambda address: address.is_unspecified)
declare(".isLoopback", _I, t.BOOL, lambda address: address.is_loopback)
declare(
    ".isLinkLocalMulticast",
    _I,
    t.BOOL,
    lambda address: (
        address in ipaddress.ip_network("224.0.0.0/24")
        if address.version == 4
        else address in ipaddress.ip_network("ff02::/16")
    ),
)
declare(".isLinkLocalUnicast", _I, t.BOOL, lambda address: address.is_link_local)
declare(".isGlobalUnicast", _I, t.BOOL, _global_unicast)
declare("cidr", TEXT, t.CIDR, _cidr)
declare("isCIDR", TEXT, t.BOOL, _parses(_cidr))
declare(".containsIP", (t.CIDR, t.IP), t.BOOL, lambda cidr, address: address in cidr.network)
declare(".containsIP", (t.CIDR, t.STRING), t.BOOL, lambda cidr, text: _ip(text) in cidr.network)
declare(".containsCIDR", (t.CIDR, t.CIDR), t.BOOL, _contains_network)
declare(
    ".containsCIDR",
    (t.CIDR, t.STRING),
    t.BOOL,
    lambda network, text: _contains_network(network, _cidr(text)),
)
declare(".ip", _C, t.IP, lambda cidr: cidr.ip)
declare(".masked", _C, t.CIDR, lambda cidr: ipaddress.ip_interface(cidr.network))
declare(".prefixLength", _C, t.INT, lambda cidr: cidr.network.prefixlen)


# URLs ------------------------------------------------------------------------------------------


def _url(text: str) -> SplitResult:
    try:
        found = urlsplit(text)
        _ = found.port
    except ValueError:
        raise fail(f"URL parse error during conversion from string: {text[:80]!r}") from None
    if not found.scheme and not found.path.startswith("/"):
        raise fail(f"URL parse error during conversion from string: {text[:80]!r}")
    return found


def _query(url: SplitResult) -> Mapping[str, tuple[str, ...]]:
    return {key: tuple(values) for key, values in parse_qs(url.query, True).items()}


_U = (t.URL,)
declare("url", TEXT, t.URL, _url)
declare("isURL", TEXT, t.BOOL, _parses(_url))
declare(".getScheme", _U, t.STRING, lambda url: url.scheme)
declare(".getHost", _U, t.STRING, lambda url: url.netloc.rpartition("@")[2])
declare(".getHostname", _U, t.STRING, lambda url: url.hostname or "")
declare(".getPort", _U, t.STRING, lambda url: "" if url.port is None else str(url.port))
declare(".getEscapedPath", _U, t.STRING, lambda url: url.path)
declare(".getQuery", _U, map_of(t.STRING, list_of(t.STRING)), _query)


# Formats ---------------------------------------------------------------------------------------

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_FORMATS: dict[str, tuple[str, int]] = {
    "dns1123Label": (_LABEL, 63),
    "dns1123Subdomain": (rf"{_LABEL}(\.{_LABEL})*", 253),
    "dns1035Label": (r"[a-z]([-a-z0-9]*[a-z0-9])?", 63),
    "dns1123LabelPrefix": (rf"{_LABEL}-?", 63),
    "dns1123SubdomainPrefix": (rf"{_LABEL}(\.{_LABEL})*-?", 253),
    "dns1035LabelPrefix": (r"[a-z]([-a-z0-9]*[a-z0-9])?-?", 63),
    "qualifiedName": (rf"({_LABEL}(\.{_LABEL})*/)?{_QUALIFIED}", 317),
    "labelValue": (rf"({_QUALIFIED})?", 63),
    "uuid": (r"[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}", 36),
    "byte": (r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", 2**20),
    "date": (r"\d{4}-(0\d|1[0-2])-([0-2]\d|3[01])", 10),
    "datetime": (
        r"\d{4}-(0\d|1[0-2])-([0-2]\d|3[01])[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)",
        64,
    ),
    "uri": (r"[A-Za-z][A-Za-z0-9+.-]*:\S*|/\S*", 2**20),
}


def _validate(named: CelFormat, text: str) -> Optional:
    pattern, longest = _FORMATS[named.name]
    problems = []
    if len(text) > longest:
        problems.append(f"must be no more than {longest} characters")
    elif regex(pattern).fullmatch(text) is None:
        problems.append(f"must be a {named.name}")
    return Optional(tuple(problems), True) if problems else NONE


def _named(name: str) -> Optional:
    return Optional(CelFormat(name), True) if name in _FORMATS else NONE


declare("format.named", TEXT, optional_of(t.FORMAT), _named)
for _name in _FORMATS:
    declare(f"format.{_name}", [], t.FORMAT, lambda name=_name: CelFormat(name))
declare(".validate", (t.FORMAT, t.STRING), optional_of(list_of(t.STRING)), _validate)
