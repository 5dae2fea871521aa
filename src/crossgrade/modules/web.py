"""What get_url and uri share: who logs in, and whom they trust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade.errors import TaskError

if TYPE_CHECKING:
    import ssl


def netrc_login(host: str | None, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """User and password that the file $NETRC, or else ~/.netrc, has for a host. Raises TaskError for a broken file."""
    import netrc

    home = environment.get("HOME")
    named = environment.get("NETRC") or (f"{home}/.netrc" if home else "")
    if not named or not host:
        return None
    try:
        found = netrc.netrc(named).authenticators(host)
    except OSError:
        return None
    except netrc.NetrcParseError as error:
        raise TaskError(
            f"the file {named} with logins cannot be read: {error.msg} (line {error.lineno})",
            remedy="Mend it, or say `use_netrc: false`.",
        ) from error
    return (found[0], found[2] or "") if found and found[0] else None


def tls_context(
    *,
    validate_certs: bool = True,
    ca_path: str | None = None,
    client_cert: str | None = None,
    client_key: str | None = None,
    ciphers: Sequence[str] = (),
) -> ssl.SSLContext:
    """How a server of https is spoken to. Raises TaskError for certificates and ciphers that cannot be used."""
    import ssl

    context = ssl.create_default_context()
    try:
        if ca_path is not None:
            context.load_verify_locations(cafile=str(Path(ca_path).expanduser()))
        if client_cert is not None:
            key = None if client_key is None else str(Path(client_key).expanduser())
            context.load_cert_chain(str(Path(client_cert).expanduser()), key)
        if ciphers:
            context.set_ciphers(":".join(ciphers))
    except (OSError, ssl.SSLError) as error:
        named = ", ".join([one for one in (ca_path, client_cert, client_key) if one] + list(ciphers))
        raise TaskError(f"certificates or ciphers cannot be used: {error.strerror or error} ({named})") from error
    if not validate_certs:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
