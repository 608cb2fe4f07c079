"""Who may use the console: addresses, token, cookie, certificate. No ROS.

On this machine (`network: localhost`) whoever reaches 127.0.0.1 may; the checks of Host and
Origin keep pages of other sites, which run in the same browser, away. In the lab's network
(`network: lan`) everything needs the token, over TLS.
"""

from __future__ import annotations

import datetime
import hmac
import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

COOKIE = "hil_console"
SHORTEST_TOKEN = 16
_LOCAL = ("127.0.0.1", "localhost", "::1")
_VALID = datetime.timedelta(days=365)


class AccessError(ValueError):
    """The console cannot be opened that way; the text says what to do."""


@dataclass(frozen=True)
class Access:
    """Rules for requests. token: empty on localhost."""

    token: str = ""

    def __post_init__(self) -> None:
        """Reject a token that can be guessed.

        Raises:
            AccessError: it is too short.
        """
        if 0 < len(self.token) < SHORTEST_TOKEN:
            raise AccessError(f"the console's token must have {SHORTEST_TOKEN} characters or more")

    @property
    def cookie(self) -> str:
        """Value that stands for the token in a browser; the token cannot be had from it."""
        return hmac.new(self.token.encode(), b"hil console cookie", "sha256").hexdigest()

    def knows(self, token: str) -> bool:
        """Whether this is the token."""
        return bool(self.token) and hmac.compare_digest(self.token.encode(), token.encode())

    def allows(self, headers: Mapping[str, str]) -> bool:
        """Whether a request with these headers (lower case) may see or do anything."""
        return self.trusts(headers) and (not self.token or self._has_cookie(headers))

    def trusts(self, headers: Mapping[str, str]) -> bool:
        """Whether the request comes from this console's own page (or from no page)."""
        host = headers.get("host", "")
        if not self.token and _name(f"//{host}") not in _LOCAL:
            return False  # a name that somebody's DNS points at this machine
        origin = headers.get("origin")
        return origin is None or urlsplit(origin).netloc == host

    def _has_cookie(self, headers: Mapping[str, str]) -> bool:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return morsel is not None and hmac.compare_digest(
            morsel.value.encode(), self.cookie.encode()
        )


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


@dataclass(frozen=True)
class Certificate:
    """Files of a TLS certificate. fingerprint: SHA-256, as browsers show it."""

    certificate: Path
    key: Path
    fingerprint: str


def certificate(folder: Path) -> Certificate:
    """The self-signed certificate of a folder; made if there is none, or it is about to expire.

    Raises:
        OSError: it cannot be written.
    """
    files = folder / "console_cert.pem", folder / "console_key.pem"
    if not all(file.exists() for file in files) or _expires_soon(files[0]):
        folder.mkdir(parents=True, exist_ok=True)
        _make(*files)
    loaded = x509.load_pem_x509_certificate(files[0].read_bytes())
    fingerprint = loaded.fingerprint(hashes.SHA256()).hex(":").upper()
    return Certificate(*files, fingerprint)


def addresses() -> list[str]:
    """IPv4 addresses of this machine, without loopback."""
    found = (a for all_ in psutil.net_if_addrs().values() for a in all_)
    ips = (a.address for a in found if a.family == socket.AF_INET)
    return sorted(ip for ip in ips if not ipaddress.ip_address(ip).is_loopback)


def _expires_soon(path: Path) -> bool:
    end = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    return end - datetime.datetime.now(datetime.timezone.utc) < datetime.timedelta(days=7)


def _make(certificate_file: Path, key_file: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    host = socket.gethostname()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"HIL console on {host}"[:64])])
    now = datetime.datetime.now(datetime.timezone.utc)
    names: list[x509.GeneralName] = [x509.DNSName(host), x509.DNSName("localhost")]
    names += [x509.IPAddress(ipaddress.ip_address(a)) for a in ["127.0.0.1", *addresses()]]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with open(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(secret)
    certificate_file.write_bytes(made.public_bytes(pem))
