"""Where the bus is and how it is reached: its address, and a file of the settings that Kafka's own clients take.

The address is `kafka://HOST:PORT[,HOST:PORT…]`. The file holds `name=value` lines under the names that librdkafka and Kafka's
Java client give TLS and SASL, so that a file which works for `kcat` or for `kafka-topics` works here. A name that is not known
here, or whose value cannot be followed, is refused by name rather than passed over: a client that is less careful than its
settings say is worse than none. No secret is ever part of a message, nor of how a `Bus` prints.
"""

import logging
import re
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from muster.log.errors import OperatingError

SCHEME: Final = "kafka://"
DEFAULT_PORT: Final = 9092

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_SAME: Final = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
}
"""librdkafka's name, and Java's for the same."""
_PATHS: Final = ("ssl.truststore.location", "ssl.keystore.location", "ssl.certificate.location", "ssl.key.location")
_OTHER: Final = (
    "client.id",
    "connections.max.idle.ms",
    "enable.ssl.certificate.verification",
    "metadata.max.age.ms",
    "sasl.jaas.config",
    "sasl.mechanism",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.type",
)
KNOWN: Final = tuple(sorted({*_SAME, *_PATHS, *_OTHER}))
"""The names that a file may hold."""

_LOGIN = re.compile(r"(?:[\w.]+\.)?(PlainLoginModule|ScramLoginModule)\s+required\s+(.*?);?\s*", re.DOTALL)
_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;"']+))""")


class BusConfigError(OperatingError):
    """The address or the file of the bus cannot be followed. Its text names what, and what would be right."""


class Bus(msgspec.Struct, frozen=True, kw_only=True):
    """A bus, and how a client reaches it. It prints without its settings, which may be secret."""

    servers: tuple[str, ...]
    """HOST:PORT each."""
    settings: dict[str, str] = {}
    """What the file held, under Java's names."""
    written: dict[str, str] = {}
    """What the file calls them."""
    source: str = ""
    """The file."""

    @classmethod
    def parse(cls, address: str, config: str | Path | None = None) -> Self:
        """The bus at `kafka://HOST:PORT[,HOST:PORT…]`, reached as the file `config` says.

        Raises:
            BusConfigError: the address is none, or the file cannot be followed.
        """
        settings, written = _read_settings(Path(config)) if config is not None else ({}, {})
        bus = cls(servers=_servers(address), settings=settings, written=written, source=str(config or ""))
        bus.client_options()  # what cannot be followed is said now, not when the first client connects
        return bus

    @property
    def address(self) -> str:
        """As a person wrote it."""
        return SCHEME + ",".join(self.servers)

    @property
    def hidden(self) -> str:
        """What to add where a topic is not seen: a cluster that knows who asks does not show everything to everybody."""
        protected = any(name.startswith(("sasl.", "ssl.keystore.", "ssl.certificate.")) for name in self.settings)
        return ", or this client may not see it (it needs the right Describe)" if protected else ""

    def client_options(self) -> dict[str, Any]:
        """How to reach the brokers, as keyword arguments that every client of aiokafka takes.

        Raises:
            BusConfigError: a setting cannot be followed.
        """
        options: dict[str, Any] = {
            "bootstrap_servers": list(self.servers),
            "client_id": self.settings.get("client.id", "muster"),
        }
        for name, key in (("metadata.max.age.ms", "metadata_max_age_ms"), ("connections.max.idle.ms", "connections_max_idle_ms")):
            if name in self.settings:
                options[key] = self._number(name)
        protocol = self.settings.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in _PROTOCOLS:
            raise self._wrong("security.protocol", f"must be one of {', '.join(_PROTOCOLS)}")
        options["security_protocol"] = protocol
        self._unused(protocol)
        if protocol in ("SSL", "SASL_SSL"):
            options["ssl_context"] = self._tls()
        if protocol.startswith("SASL_"):
            options |= self._sasl()
        return options

    def __repr__(self) -> str:
        return f"Bus({self.address!r})"

    def __rich_repr__(self) -> Any:
        yield self.address

    def _sasl(self) -> dict[str, Any]:
        mechanism = self.settings.get("sasl.mechanism", "").upper()
        if mechanism not in _MECHANISMS:
            raise self._wrong("sasl.mechanism", f"must be one of {', '.join(_MECHANISMS)}")
        user, password = self.settings.get("sasl.username"), self.settings.get("sasl.password")
        if "sasl.jaas.config" in self.settings:
            if user is not None or password is not None:
                raise self._wrong("sasl.jaas.config", "says what sasl.username and sasl.password say: keep one of the two")
            user, password = self._login(mechanism)
        if not user or not password:
            raise self._wrong(
                "sasl.username" if not user else "sasl.password",
                f"is missing: security.protocol={self.settings['security.protocol']} needs it",
            )
        return {"sasl_mechanism": mechanism, "sasl_plain_username": user, "sasl_plain_password": password}

    def _login(self, mechanism: str) -> tuple[str | None, str | None]:
        """Name and password from Java's `MODULE required username="…" password="…";`."""
        module = "PlainLoginModule" if mechanism == "PLAIN" else "ScramLoginModule"
        found = _LOGIN.fullmatch(self.settings["sasl.jaas.config"].strip())
        if found is None or found[1] != module:
            raise self._wrong("sasl.jaas.config", f'must read `{module} required username="NAME" password="SECRET";`')
        options = {name: quoted or single or bare for name, quoted, single, bare in _OPTION.findall(found[2])}
        return tuple(re.sub(r"\\(.)", r"\1", options[key]) if key in options else None for key in ("username", "password"))  # type: ignore[return-value]

    def _tls(self) -> ssl.SSLContext:
        settings = self.settings
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
        if "ssl.truststore.location" in settings or "ssl.truststore.certificates" in settings:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # these authorities and no others
        if "ssl.truststore.location" in settings:
            place = Path(settings["ssl.truststore.location"])
            self._is_pem("ssl.truststore.type", place)
            self._load("ssl.truststore.location", lambda: context.load_verify_locations(**_file_or_folder(place)))
        if "ssl.truststore.certificates" in settings:
            text = _unfolded(settings["ssl.truststore.certificates"])
            self._load("ssl.truststore.certificates", lambda: context.load_verify_locations(cadata=text))
        self._identify(context)
        if settings.get("ssl.endpoint.identification.algorithm", "https").lower() in ("", "none"):
            context.check_hostname = False
        elif settings.get("ssl.endpoint.identification.algorithm", "https").lower() != "https":
            raise self._wrong("ssl.endpoint.identification.algorithm", "must be https, or none where names are not checked")
        verification = settings.get("enable.ssl.certificate.verification", "true").lower()
        if verification not in ("true", "false"):
            raise self._wrong("enable.ssl.certificate.verification", "must be true or false")
        if verification == "false":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if "ssl.cipher.suites" in settings:
            names = ":".join(re.split(r"[,:\s]+", settings["ssl.cipher.suites"]))
            self._load("ssl.cipher.suites", lambda: context.set_ciphers(names))
        return context

    def _identify(self, context: ssl.SSLContext) -> None:
        """Who this client is, where the file says: a certificate and its key, in one file, in two, or in the settings."""
        settings = self.settings
        password = settings.get("ssl.key.password", "")
        if "ssl.keystore.location" in settings:
            place = Path(settings["ssl.keystore.location"])
            self._is_pem("ssl.keystore.type", place)
            self._load("ssl.keystore.location", lambda: context.load_cert_chain(place, password=password))
        elif "ssl.certificate.location" in settings:
            chain = settings["ssl.certificate.location"]
            key = settings.get("ssl.key.location")
            self._load("ssl.certificate.location", lambda: context.load_cert_chain(chain, key, password))
        elif "ssl.keystore.certificate.chain" in settings:
            if "ssl.keystore.key" not in settings:
                raise self._wrong("ssl.keystore.key", "is missing: ssl.keystore.certificate.chain needs it")
            text = _unfolded(settings["ssl.keystore.key"]) + "\n" + _unfolded(settings["ssl.keystore.certificate.chain"])
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:  # OpenSSL takes a file only; nobody else may read it
                both.write(text)
                both.flush()
                self._load("ssl.keystore.key", lambda: context.load_cert_chain(both.name, password=password))

    def _is_pem(self, name: str, place: Path) -> None:
        kind = self.settings.get(name, "PEM").upper()
        if kind != "PEM" or place.suffix.lower() in (".jks", ".p12", ".pfx"):
            raise self._wrong(
                name, f"must be PEM, and {place} a file of that kind: Java's key stores are not read here (keytool exports them)"
            )

    def _load(self, name: str, load: Any) -> None:
        try:
            load()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or "not of the expected form"
            raise self._wrong(name, f"cannot be used: {reason}") from None

    def _number(self, name: str) -> int:
        try:
            return int(self.settings[name])
        except ValueError:
            raise self._wrong(name, "must be a number") from None

    def _unused(self, protocol: str) -> None:
        """What would be without effect was meant to have one."""
        for name in self.settings:
            if name.startswith("sasl.") and not protocol.startswith("SASL_"):
                raise self._wrong(name, f"has no effect with security.protocol={protocol}: use SASL_SSL or SASL_PLAINTEXT")
            if name.startswith("ssl.") and not protocol.endswith("SSL"):
                raise self._wrong(name, f"has no effect with security.protocol={protocol}: use SASL_SSL or SSL")

    def _wrong(self, name: str, what: str) -> BusConfigError:
        return BusConfigError(f"{self.source or 'the settings of the bus'}: {self.written.get(name, name)} {what}")


@contextmanager
def reasons() -> Iterator[list[str]]:
    """What aiokafka says meanwhile of its failures: its exceptions say less, and a person needs to know."""
    heard: list[str] = []
    handler = _Listener(heard)
    logger = logging.getLogger("aiokafka")
    logger.addHandler(handler)
    try:
        yield heard
    finally:
        logger.removeHandler(handler)


class _Listener(logging.Handler):
    def __init__(self, heard: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self._heard[:] = [record.getMessage()]  # the last one


def _read_settings(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """What a file of settings holds, under Java's names where librdkafka's differ; and the names that stand in the file.

    A value is taken as it stands, without escapes; one that ends in a backslash goes on in the next line.

    Raises:
        BusConfigError: the file cannot be read, or a name is not known, or stands there twice.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BusConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}") from None
    settings: dict[str, str] = {}
    written: dict[str, str] = {}
    for number, line in _lines(text):
        name, found, value = line.partition("=")
        name = name.strip()
        if not found:
            raise BusConfigError(f"{path}, line {number}: must read NAME=VALUE")  # the line may be a secret, so it is not shown
        if name == "bootstrap.servers":
            raise BusConfigError(f"{path}, line {number}: bootstrap.servers is what the address of the bus says: take it out")
        if name not in KNOWN:
            raise BusConfigError(f"{path}, line {number}: {name[:64]} is not supported; what is: {', '.join(KNOWN)}")
        same = _SAME.get(name, name)
        if same in settings:
            raise BusConfigError(f"{path}, line {number}: {name} was said before")
        written[same] = name
        settings[same] = str(path.parent / value.strip()) if same in _PATHS else value.strip()
    return settings, written


def _lines(text: str) -> list[tuple[int, str]]:
    """The lines that say something, with their numbers; those that a backslash ends with what follows them."""
    found: list[tuple[int, str]] = []
    going_on = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not going_on and (not line or line[0] in "#!"):
            continue
        ends = line.endswith("\\")
        line = line[:-1] if ends else line
        if going_on:
            found[-1] = (found[-1][0], found[-1][1] + line)
        else:
            found.append((number, line))
        going_on = ends
    return found


def _servers(address: str) -> tuple[str, ...]:
    right = f"{SCHEME}HOST:PORT, or several HOST:PORT with commas between"
    if not address.startswith(SCHEME):
        raise BusConfigError(f"the bus {address[:200]!r} must read {right}")
    servers = []
    for each in address.removeprefix(SCHEME).rstrip("/").split(","):
        found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::(\d{1,5}))?", each.strip())
        if found is None or not 0 < int(found[2] or DEFAULT_PORT) < 65536:
            raise BusConfigError(f"the bus {address[:200]!r} names {each[:100]!r}; it must read {right}")
        servers.append(f"{found[1]}:{found[2] or DEFAULT_PORT}")
    return tuple(servers)


def _file_or_folder(place: Path) -> Mapping[str, Any]:
    return {"capath": place} if place.is_dir() else {"cafile": place}


def _unfolded(text: str) -> str:
    r"""A PEM text that stands in one line, its line ends as \n."""
    return text.replace("\\n", "\n")
