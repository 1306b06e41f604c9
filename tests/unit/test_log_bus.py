"""The address of a bus and the file of its settings: what is followed, and what is refused by name."""

import ssl
from pathlib import Path

import pytest

from muster.events import cloudevents
from muster.log.bus import KNOWN, Bus, BusConfigError
from muster.log.topics import declared

SECRET = "correct-horse"
KAFKA_WRAPS_BYTES = 4096
"""More than a batch of one message adds: its header, the message's key and its headers."""


def _bus(tmp_path: Path, text: str, address: str = "kafka://broker:9093") -> Bus:
    path = tmp_path / "bus.properties"
    path.write_text(text)
    return Bus.parse(address, path)


def _refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(BusConfigError) as caught:
        _bus(tmp_path, text)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("address", "servers"),
    [
        ("kafka://localhost:9092", ("localhost:9092",)),
        ("kafka://a.b-c.example:1,d:65535", ("a.b-c.example:1", "d:65535")),
        ("kafka://10.0.0.1", ("10.0.0.1:9092",)),
        ("kafka://[::1]:9092/", ("[::1]:9092",)),
    ],
)
def test_an_address_names_brokers(address: str, servers: tuple[str, ...]) -> None:
    assert Bus.parse(address).servers == servers
    assert Bus.parse(address).client_options()["bootstrap_servers"] == list(servers)


@pytest.mark.parametrize(
    "address",
    ["localhost:9092", "http://localhost:9092", "kafka://", "kafka://a:0", "kafka://a:65536", "kafka://a:b", "kafka://a,,b"],
)
def test_what_is_no_address_is_refused_with_what_would_be_right(address: str) -> None:
    with pytest.raises(BusConfigError, match=r"must read kafka://HOST:PORT"):
        Bus.parse(address)


def test_without_a_file_nothing_is_encrypted() -> None:
    options = Bus.parse("kafka://a:1").client_options()
    assert options["security_protocol"] == "PLAINTEXT"
    assert "ssl_context" not in options
    assert "sasl_mechanism" not in options


@pytest.mark.parametrize(
    "text",
    [
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=ada\nsasl.password={SECRET}",
        "security.protocol = sasl_plaintext\n# librdkafka\nsasl.mechanisms = SCRAM-SHA-512\n"
        f"sasl.username = ada\nsasl.password = {SECRET}\n",
        "security.protocol=SASL_PLAINTEXT\n! Java\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        f'    username="ada" \\\n    password="{SECRET}";\n',
    ],
)
def test_librdkafkas_names_and_javas_say_the_same(tmp_path: Path, text: str) -> None:
    bus = _bus(tmp_path, text)
    options = bus.client_options()
    assert options["security_protocol"] == "SASL_PLAINTEXT"
    assert options["sasl_mechanism"] == "SCRAM-SHA-512"
    assert (options["sasl_plain_username"], options["sasl_plain_password"]) == ("ada", SECRET)
    assert SECRET not in f"{bus} {bus!r}"


def test_a_login_may_hold_quotes_and_semicolons(tmp_path: Path) -> None:
    text = (
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        r'sasl.jaas.config=PlainLoginModule required username="a;b" password="c\"d=e";'
    )
    options = _bus(tmp_path, text).client_options()
    assert (options["sasl_plain_username"], options["sasl_plain_password"]) == ("a;b", 'c"d=e')


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sasl.kerberos.service.name=kafka", "sasl.kerberos.service.name is not supported; what is: client.id"),
        ("acks=1", "acks is not supported"),
        (f"sasl.pasword={SECRET}", "sasl.pasword is not supported"),
        (SECRET, "line 1: must read NAME=VALUE"),
        ("bootstrap.servers=a:1", "bootstrap.servers is what the address of the bus says"),
        ("sasl.mechanism=PLAIN\nsasl.mechanisms=PLAIN", "line 2: sasl.mechanisms was said before"),
        ("security.protocol=TLS", "security.protocol must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI", "sasl.mechanism must be one of PLAIN, SCRAM-SHA-256"),
        ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism must be one of"),
        (f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.password={SECRET}", "sasl.username is missing"),
        ("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=ada", "sasl.password is missing"),
        (f"sasl.mechanism=PLAIN\nsasl.username=ada\nsasl.password={SECRET}", "sasl.mechanism has no effect"),
        ("ssl.ca.location=ca.pem", "ssl.ca.location has no effect with security.protocol=PLAINTEXT"),
        (
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config=ScramLoginModule required password="{SECRET}";',
            "sasl.jaas.config must read `PlainLoginModule required",
        ),
        ("security.protocol=SSL\nssl.ca.location=missing.pem", "ssl.ca.location cannot be used: No such file"),
        ("security.protocol=SSL\nssl.truststore.location=trust.jks", "ssl.truststore.type must be PEM"),
        ("security.protocol=SSL\nssl.truststore.location=a\nssl.truststore.type=PKCS12", "ssl.truststore.type must be PEM"),
        ("security.protocol=SSL\nssl.truststore.certificates=nonsense", "ssl.truststore.certificates cannot be used"),
        (f"security.protocol=SSL\nssl.keystore.certificate.chain={SECRET}", "ssl.keystore.key is missing"),
        (f"security.protocol=SSL\nssl.certificate.pem={SECRET}\nssl.key.pem={SECRET}", "ssl.key.pem cannot be used"),
        ("security.protocol=SSL\nssl.endpoint.identification.algorithm=ldaps", "identification.algorithm must be https"),
        ("security.protocol=SSL\nenable.ssl.certificate.verification=no", "verification must be true or false"),
        ("security.protocol=SSL\nssl.cipher.suites=ROT13", "ssl.cipher.suites cannot be used"),
        ("metadata.max.age.ms=soon", "metadata.max.age.ms must be a number"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    assert named in _refused(tmp_path, text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BusConfigError, match=r"missing\.properties: cannot be read: No such file"):
        Bus.parse("kafka://a:1", tmp_path / "missing.properties")


def test_tls_checks_certificate_and_name_unless_told_otherwise(tmp_path: Path) -> None:
    context = _bus(tmp_path, "security.protocol=SSL").client_options()["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    text = "security.protocol=SSL\nssl.endpoint.identification.algorithm=\n"
    context = _bus(tmp_path, text).client_options()["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)
    text = "security.protocol=SSL\nenable.ssl.certificate.verification=false\n"
    context = _bus(tmp_path, text).client_options()["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


def test_every_name_that_is_supported_is_told() -> None:
    assert {"security.protocol", "ssl.ca.location", "ssl.truststore.location", "sasl.mechanism", "sasl.mechanisms"} <= set(KNOWN)


def test_the_topics_are_the_log_and_the_inputs() -> None:
    names = [topic.name for topic in declared()]
    inputs = ["muster.jobs", "muster.nodes", "muster.gpu-health", "muster.operations"]
    assert names == ["muster.log", *inputs, "muster.telemetry"]
    assert [topic.name for topic in declared() if topic.essential] == ["muster.log", *inputs]
    for topic in declared():
        assert topic.settings["cleanup.policy"] == "delete"
        assert topic.settings["unclean.leader.election.enable"] == "false"
        assert topic.settings["message.timestamp.type"] == "LogAppendTime"
        assert (topic.settings["retention.ms"] == "-1") == (topic.name == "muster.log")


def test_every_topic_takes_the_longest_input_that_the_scheduler_takes() -> None:
    for topic in declared():
        if topic.name in cloudevents.KINDS or topic.name == cloudevents.NODES:
            most = cloudevents.most_bytes(topic.name) + KAFKA_WRAPS_BYTES
            assert int(topic.settings["max.message.bytes"]) >= most, topic.name
