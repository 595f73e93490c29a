"""Addresses and the variables that say how to talk to a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.errors import InputError
from pipelines.kafka.dead_letters import DeadLettersConfig
from pipelines.kafka.settings import KafkaUrl, client_settings, is_url, parse_url


def test_addresses() -> None:
    assert parse_url("kafka://b/t") == KafkaUrl(("b:9092",), ("t",))
    url = parse_url("kafka://b1:1,b2,[::1]:3/t.1,t_2/")
    assert url == KafkaUrl(("b1:1", "b2:9092", "[::1]:3"), ("t.1", "t_2"))
    assert parse_url(str(url)) == url and is_url(str(url)) and not is_url("events.jsonl")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://b/t", "no Kafka address"),
        ("kafka://b", "no topic"),
        ("kafka://b/", "no topic"),
        ("kafka:///t", "no broker"),
        ("kafka://b:x/t", "no broker"),
        ("kafka://b:99999/t", "no broker"),
        ("kafka://b/a/b", "topics named"),
        ("kafka://b/..", "topics named"),
        ("kafka://user:secret@b/t", "no credentials"),
    ],
)
def test_what_is_no_address(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        parse_url(text)
    assert "secret" not in str(caught.value)


def test_without_variables_nothing_is_encrypted() -> None:
    assert client_settings({}) == {"security_protocol": "PLAINTEXT"}


def test_a_password_goes_over_tls_unless_said_otherwise() -> None:
    who = {"PALATE_KAFKA_USERNAME": "u", "PALATE_KAFKA_PASSWORD": "p"}
    settings = client_settings(who)
    assert settings["security_protocol"] == "SASL_SSL" and settings["ssl_check_hostname"]
    assert settings["sasl_mechanism"] == "SCRAM-SHA-512"
    assert (settings["sasl_plain_username"], settings["sasl_plain_password"]) == ("u", "p")
    plain = client_settings(who | {"PALATE_KAFKA_SECURITY_PROTOCOL": "sasl_plaintext"})
    assert plain["security_protocol"] == "SASL_PLAINTEXT" and "ssl_check_hostname" not in plain


def test_certificates(tmp_path: Path) -> None:
    files = {}
    for name in ("CAFILE", "CERTFILE", "KEYFILE"):
        file = tmp_path / name
        file.write_text("pem")
        files[f"PALATE_KAFKA_SSL_{name}"] = str(file)
    settings = client_settings(files)
    assert settings["security_protocol"] == "SSL"
    assert settings["ssl_keyfile"] == files["PALATE_KAFKA_SSL_KEYFILE"]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"USERNAME": "u"}, "PASSWORD"),
        ({"SASL_MECHANISM": "PLAIN"}, "USERNAME"),
        ({"SASL_MECHANISM": "MAGIC", "USERNAME": "u", "PASSWORD": "p"}, "SCRAM"),
        ({"SECURITY_PROTOCOL": "TLS"}, "SASL_SSL"),
        ({"SSL_CAFILE": "/nowhere.pem"}, "nowhere"),
        ({"SSL_CERTFILE": __file__}, "SSL_KEYFILE"),
    ],
)
def test_what_is_wrong_is_named(variables: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        client_settings({f"PALATE_KAFKA_{name}": value for name, value in variables.items()})


def test_the_client_takes_every_setting(tmp_path: Path) -> None:
    """kafka-python refuses names it does not know before it connects."""
    from kafka import KafkaConsumer

    who = {"PALATE_KAFKA_USERNAME": "u", "PALATE_KAFKA_PASSWORD": "p", "PALATE_KAFKA_SSL_PASSWORD": "x"}
    assert set(client_settings(who)) <= set(KafkaConsumer.DEFAULT_CONFIG)


def test_dead_letters_go_to_one_topic() -> None:
    assert DeadLettersConfig(kafka="kafka://b/t").kafka == "kafka://b/t"
    for wrong in ("kafka://b/t,u", "kafka://b", "t"):
        with pytest.raises(ValueError, match=r"topic|address"):
            DeadLettersConfig(kafka=wrong)
