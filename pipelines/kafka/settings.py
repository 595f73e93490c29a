"""Where a cluster is and how to talk to it: the URL names it, the environment holds what is secret.

    kafka://broker-1:9092,broker-2:9092/events,feedback

| variable | meaning |
|---|---|
| `PALATE_KAFKA_SECURITY_PROTOCOL` | `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`; else follows from the others |
| `PALATE_KAFKA_SASL_MECHANISM` | `SCRAM-SHA-512` (default), `SCRAM-SHA-256`, `PLAIN` |
| `PALATE_KAFKA_USERNAME`, `PALATE_KAFKA_PASSWORD` | who we are |
| `PALATE_KAFKA_SSL_CAFILE` | certificates that sign the brokers', PEM; else the system's |
| `PALATE_KAFKA_SSL_CERTFILE`, `PALATE_KAFKA_SSL_KEYFILE`, `PALATE_KAFKA_SSL_PASSWORD` | our own certificate |

A broker's name is always checked against its certificate.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError

SCHEME = "kafka://"
DEFAULT_PORT = 9092
PREFIX = "PALATE_KAFKA_"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
EXAMPLE = "kafka://broker:9092/topic"
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_FILES = {
    "ssl_cafile": "SSL_CAFILE",
    "ssl_certfile": "SSL_CERTFILE",
    "ssl_keyfile": "SSL_KEYFILE",
}


@dataclass(frozen=True)
class KafkaUrl:
    """Brokers to ask first, and the topics meant."""

    brokers: tuple[str, ...]
    """`host:port`, in the order given."""
    topics: tuple[str, ...]

    @property
    def address(self) -> str:
        """The brokers as one text."""
        return ",".join(self.brokers)

    def __str__(self) -> str:
        return f"{SCHEME}{self.address}/{','.join(self.topics)}"


def is_url(text: object) -> bool:
    """Whether this names a Kafka cluster rather than a file."""
    return str(text).startswith("kafka:/")


def parse_url(text: str) -> KafkaUrl:
    """Reads `kafka://broker[:port][,broker[:port]…]/topic[,topic…]`.

    Raises:
        InputError: another form, a name Kafka does not allow, or credentials, which belong in the environment.
    """

    def refuse(what: str, next_step: str = f"write it as {EXAMPLE}") -> InputError:
        return InputError(what, got=re.sub(r"//[^/]*@", "//…@", text), allowed=EXAMPLE, next_step=next_step)

    if not text.startswith(SCHEME):
        raise refuse("This is no Kafka address.")
    brokers_text, _, topics_text = text.removeprefix(SCHEME).partition("/")
    if "@" in brokers_text:
        raise refuse(
            "A Kafka address takes no credentials: addresses end up in logs and records.",
            f"set {PREFIX}USERNAME and {PREFIX}PASSWORD",
        )
    brokers = tuple(_broker(part.strip(), refuse) for part in brokers_text.split(","))
    topics = tuple(dict.fromkeys(part for part in topics_text.rstrip("/").split(",") if part))
    if not topics:
        raise refuse("The Kafka address names no topic.")
    for topic in topics:
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise refuse(f"Kafka has no topics named like {topic!r}.")
    return KafkaUrl(brokers, topics)


def _broker(text: str, refuse: Any) -> str:
    """`host:port`, the port filled in; an IPv6 address stands in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise refuse(f"{text!r} is no broker.")
    return f"{host}:{port}"


def client_settings(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Arguments of every kafka-python client: transport and authentication, from the environment.

    Args:
        environment: variables; the process' own when None.

    Raises:
        InputError: a value that is not allowed, a missing partner, or a file that is not there.
    """
    values = os.environ if environment is None else environment
    given = {
        key.removeprefix(PREFIX): value for key, value in values.items() if key.startswith(PREFIX) and value
    }
    protocol = given.get("SECURITY_PROTOCOL", _protocol(given)).upper()
    _allowed("SECURITY_PROTOCOL", protocol, PROTOCOLS)
    settings: dict[str, Any] = {"security_protocol": protocol}
    if "SSL" in protocol:
        settings |= {name: _file(variable, given) for name, variable in _FILES.items() if variable in given}
        if ("ssl_certfile" in settings) != ("ssl_keyfile" in settings):
            raise _missing("SSL_KEYFILE" if "ssl_certfile" in settings else "SSL_CERTFILE")
        if "SSL_PASSWORD" in given:
            settings["ssl_password"] = given["SSL_PASSWORD"]
        settings["ssl_check_hostname"] = True
    if protocol.startswith("SASL"):
        mechanism = given.get("SASL_MECHANISM", MECHANISMS[0]).upper()
        _allowed("SASL_MECHANISM", mechanism, MECHANISMS)
        for name in ("USERNAME", "PASSWORD"):
            if name not in given:
                raise _missing(name)
        settings |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": given["USERNAME"],
            "sasl_plain_password": given["PASSWORD"],
        }
    return settings


def _protocol(given: Mapping[str, str]) -> str:
    """What the other variables imply. A password is never sent unencrypted unless that is asked for."""
    if "USERNAME" in given or "SASL_MECHANISM" in given:
        return "SASL_SSL"
    return "SSL" if any(name in given for name in _FILES.values()) else "PLAINTEXT"


def _file(variable: str, given: Mapping[str, str]) -> str:
    path = Path(given[variable]).expanduser()
    if not path.is_file():
        raise InputError(f"{PREFIX}{variable} names a file that is not there.", got=path)
    return str(path)


def _allowed(variable: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{PREFIX}{variable} has no such value.", got=value, allowed=", ".join(known))


def _missing(variable: str) -> InputError:
    return InputError(f"{PREFIX}{variable} is needed as well.", next_step=f"export {PREFIX}{variable}=…")
