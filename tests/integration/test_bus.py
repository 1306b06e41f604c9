"""The topics on a real broker: made as declared, and each setting that would lose records named; TLS and SASL for real."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # it exports them by name only
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from muster.cli.main import run
from muster.events.codec import encode_cycle
from muster.events.record import GENESIS, Cycle, TermStarted
from muster.log import topics
from muster.log.bus import Bus, BusConfigError
from muster.log.errors import LogClosed, LogMissing, LogUnreachable
from muster.log.kafka import KafkaLog
from muster.log.topics import BusUnfit, Topic, declared
from tests.support.kafka import Brokers, Kafka
from tests.support.topics import make_topic


def _renamed(kafka: Kafka) -> list[Topic]:
    """The topics as declared, under names that no other test has: the broker is shared."""
    return [msgspec.structs.replace(topic, name=kafka.topic(topic.name)) for topic in declared()]


def _log(kafka: Kafka) -> Topic:
    return _renamed(kafka)[0]


def _jobs(kafka: Kafka) -> Topic:
    return _renamed(kafka)[1]


async def test_what_create_makes_check_finds_nothing_wrong_with(kafka: Kafka) -> None:
    bus, wanted = Bus.parse(kafka.address), _renamed(kafka)
    missing = await topics.check(bus, wanted)
    assert missing == [f"{topic.name} is missing: `muster bus create` makes it" for topic in wanted]
    assert await topics.create(bus, wanted) == [topic.name for topic in wanted]
    assert await topics.check(bus, wanted) == []
    await topics.require_fit(bus, wanted)
    assert await topics.create(bus, wanted) == []
    found = await topics.describe(bus, wanted)
    assert [len(topic.partitions) for topic in found.topics] == [1] * len(wanted)
    assert all((part.begin, part.end) == (0, 0) for topic in found.topics for part in topic.partitions)
    assert found.topics[0].settings["flush.messages"] == "1"


async def test_only_what_is_missing_is_made_and_what_is_wrong_stays_and_is_named(kafka: Kafka) -> None:
    bus, wanted = Bus.parse(kafka.address), _renamed(kafka)
    await make_topic(bus, wanted[1].name, {**topics.settings_of(wanted[1], copies=1), "retention.ms": "1000"})
    assert await topics.create(bus, wanted) == [topic.name for topic in wanted if topic is not wanted[1]]
    assert [sentence.startswith(f"{wanted[1].name} has retention.ms=1000") for sentence in await topics.check(bus, wanted)] == [
        True
    ]


async def test_fewer_partitions_than_declared_are_named_and_more_only_where_order_counts(kafka: Kafka) -> None:
    bus, (log, jobs) = Bus.parse(kafka.address), _renamed(kafka)[:2]
    for topic in (log, jobs):
        await make_topic(bus, topic.name, topics.settings_of(topic, copies=1), partitions=3)
    assert await topics.check(bus, [log, jobs]) == [
        f"{log.name} has 3 partitions and must have 1: order is kept in a partition only"
    ]
    assert await topics.check(bus, [msgspec.structs.replace(jobs, partitions=4)]) == [
        f"{jobs.name} has 3 partitions and must have at least 4"
    ]


WRONG_LOGS = [
    ({"cleanup.policy": "compact"}, "has cleanup.policy=compact and must have delete: a compacted topic drops records"),
    ({"cleanup.policy": "compact,delete"}, "has cleanup.policy=compact,delete and must have delete"),
    (
        {"unclean.leader.election.enable": "true"},
        "has unclean.leader.election.enable=true and must have false: a copy that missed",
    ),
    ({"max.message.bytes": "1048588"}, "has max.message.bytes=1048588 and must have at least 17825792: the largest records"),
    ({"max.message.bytes": "16777216"}, "has max.message.bytes=16777216 and must have at least 17825792"),
    ({"retention.ms": "604800000"}, "has retention.ms=604800000 and must have -1: records would go before"),
    ({"retention.bytes": "1073741824"}, "has retention.bytes=1073741824 and must have -1: records would go when it is full"),
    (
        {"message.timestamp.type": "CreateTime"},
        "has message.timestamp.type=CreateTime and must have LogAppendTime: only the broker's",
    ),
    ({"flush.messages": "10"}, "has one copy and flush.messages=10 and must have 1: else a crash of its machine loses records"),
]


@pytest.mark.parametrize(
    ("changed", "named"), WRONG_LOGS, ids=[",".join(f"{k}={v}" for k, v in each.items()) for each, _ in WRONG_LOGS]
)
async def test_a_log_with_a_wrong_setting_is_named_and_refused(kafka: Kafka, changed: dict[str, str], named: str) -> None:
    bus, log = Bus.parse(kafka.address), _log(kafka)
    await make_topic(bus, log.name, {**topics.settings_of(log, copies=1), **changed})
    wrong = await topics.check(bus, [log])
    assert len(wrong) == 1
    assert wrong[0].startswith(f"{log.name} {named}")
    with pytest.raises(BusUnfit, match="is not fit to be used") as caught:
        await topics.require_fit(bus, [log])
    assert wrong[0] in str(caught.value)


async def test_a_log_of_a_broker_that_was_told_nothing_has_everything_named(kafka: Kafka) -> None:
    bus, log = Bus.parse(kafka.address), _log(kafka)
    await make_topic(bus, log.name, {}, partitions=3)
    wrong = await topics.check(bus, [log])
    for part in ("3 partitions and must have 1: order", "LogAppendTime", "retention.ms", "max.message.bytes", "flush.messages"):
        assert sum(part in sentence for sentence in wrong) == 1, (part, wrong)
    assert all(sentence.startswith(f"{log.name} has ") for sentence in wrong)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"message.timestamp.type": "CreateTime"}, "message.timestamp.type=CreateTime and must have LogAppendTime"),
        ({"cleanup.policy": "compact"}, "cleanup.policy=compact and must have delete"),
        ({"retention.ms": "3600000"}, "retention.ms=3600000 and must have at least 604800000"),
    ],
)
async def test_an_input_topic_with_a_wrong_setting_is_named(kafka: Kafka, changed: dict[str, str], named: str) -> None:
    bus, jobs = Bus.parse(kafka.address), _jobs(kafka)
    await make_topic(bus, jobs.name, {**topics.settings_of(jobs, copies=1), **changed})
    assert [named in sentence for sentence in await topics.check(bus, [jobs])] == [True]


async def test_more_than_what_is_declared_is_as_well(kafka: Kafka) -> None:
    bus, jobs = Bus.parse(kafka.address), _jobs(kafka)
    more = {"retention.ms": "-1", "max.message.bytes": "17825792"}
    await make_topic(bus, jobs.name, {**topics.settings_of(jobs, copies=1), **more}, partitions=6)
    assert await topics.check(bus, [jobs]) == []


async def test_a_bus_that_nobody_answers_at_is_named() -> None:
    with pytest.raises(LogUnreachable, match=r"the bus kafka://127\.0\.0\.1:1 does not answer: .*Connect call failed"):
        await topics.check(Bus.parse("kafka://127.0.0.1:1"))


async def test_three_brokers_hold_three_copies_and_anything_weaker_is_named(three_kafka: Brokers) -> None:
    three = three_kafka
    bus, wanted = Bus.parse(three.address), _renamed(three)
    await topics.create(bus, wanted)
    assert await topics.check(bus, wanted) == []
    found = await topics.describe(bus, wanted)
    assert all(len(part.in_sync) == 3 for topic in found.topics for part in topic.partitions)
    assert found.topics[0].settings["min.insync.replicas"] == "2"
    log = _log(three)
    for copies, changed, named in (
        (3, {"min.insync.replicas": "1"}, "has min.insync.replicas=1 and must have 2"),
        (3, {"min.insync.replicas": "3"}, "has min.insync.replicas=3 of 3 copies and must have less"),
        (
            2,
            {"min.insync.replicas": "2"},
            "has 2 copies and must have 3 with min.insync.replicas=2, or one with flush.messages=1",
        ),
        (1, {"flush.messages": "9223372036854775807"}, "has one copy and flush.messages=9223372036854775807 and must have 1"),
    ):
        weaker = msgspec.structs.replace(log, name=three.topic("weaker"))
        await make_topic(bus, weaker.name, {**topics.settings_of(log, copies=copies), **changed}, replicas=copies)
        assert [sentence.startswith(f"{weaker.name} {named}") for sentence in await topics.check(bus, [weaker])] == [True]


def test_people_make_check_and_see_the_topics_over_tls_with_a_password(
    secure_kafka: Brokers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = secure_kafka
    where = ["--bus", broker.secure_address, "--bus-config", str(broker.client_properties)]
    assert run(["bus", "check", *where]) == 1
    assert (
        "muster.log is missing, or this client may not see it (it needs the right Describe): `muster bus create` makes it"
        in capsys.readouterr().err
    )
    assert run(["bus", "create", *where]) == 0
    assert capsys.readouterr().out.splitlines() == [
        *(f"made {topic.name}" for topic in declared()),
        "all 6 topics are as they must be",
    ]
    assert run(["bus", "check", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"wrong": []}
    assert run(["bus", "describe", *where]) == 0
    assert "\nmuster.jobs/0 " in capsys.readouterr().out

    asyncio.run(_write_cycle(Bus.parse(*where[1::2]), {"muster.jobs/0": 5, "muster.operations/0": 0, "muster.nodes/7": 2}))
    assert run(["bus", "check", *where]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "muster.jobs/0 ends at 0, and 5 was to be read next: it was cut or made anew",
        "muster.nodes/7 is gone, and 2 was to be read next",
    ]
    assert run(["bus", "check", *where, "--cell", "other"]) == 0
    capsys.readouterr()

    settings = broker.client_properties.read_text()
    secret = next(line.partition("=")[2] for line in settings.splitlines() if line.startswith("sasl.password"))
    other = tmp_path / "other.properties"
    for text, status, said in (
        (settings.replace("=PLAIN", "=SCRAM-SHA-512"), 0, ""),
        (settings.replace(secret, "wrong-" + secret), 3, "Authentication failed"),
        (settings.replace("ssl.ca.location", "#ssl.ca.location"), 3, "certificate verify failed"),
        (settings.replace("SASL_SSL", "SASL_PLAINTEXT").replace("ssl.ca.location", "#ssl.ca.location"), 3, "does not answer"),
    ):
        other.write_text(text)
        assert run(["bus", "create", "--bus", broker.secure_address, "--bus-config", str(other)]) == status
        told = capsys.readouterr().err
        assert said in told
        assert secret not in told


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


async def test_a_broker_that_wants_a_certificate_of_its_clients_is_shown_one(
    brokers: Callable[..., Brokers], tmp_path: Path
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("without openssl no key can be made")
    key, locked, certificate = tmp_path / "key.pem", tmp_path / "locked.pem", tmp_path / "certificate.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    _openssl("req", "-x509", *curve, "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=muster")
    _openssl("pkey", "-in", key, "-aes256", "-passout", "pass:opensesame", "-out", locked)
    both = tmp_path / "both.pem"
    both.write_text(key.read_text() + certificate.read_text())
    listener = "listener.name.secure.ssl"
    settings = {
        f"{listener}.client.auth": "required",
        f"{listener}.truststore.type": "PEM",
        f"{listener}.truststore.location": str(certificate),
    }
    broker = brokers(secure=True, set=settings)
    given = broker.client_properties.read_text()

    async def check(*more: str) -> list[str]:
        own = tmp_path / "own.properties"
        own.write_text(given + "\n".join(more))
        return await topics.check(Bus.parse(broker.secure_address, own))

    with pytest.raises(LogUnreachable):
        await check()
    folded = [path.read_text().replace("\n", "\\n") for path in (certificate, key)]
    for more in (
        [f"ssl.certificate.location={certificate}", f"ssl.key.location={key}"],
        [f"ssl.certificate.location={certificate}", "ssl.key.location=locked.pem", "ssl.key.password=opensesame"],
        [f"ssl.keystore.location={both}", "ssl.keystore.type=PEM"],
        [f"ssl.certificate.pem={folded[0]}", f"ssl.key.pem={folded[1]}"],
    ):
        assert [" is missing, or " in sentence for sentence in await check(*more)] == [True] * len(topics.declared())
    with pytest.raises(BusConfigError, match=r"ssl\.certificate\.location cannot be used"):
        await check(f"ssl.certificate.location={certificate}", "ssl.key.location=locked.pem", "ssl.key.password=wrong")


async def test_a_client_that_lacks_a_right_is_told_which(brokers: Callable[..., Brokers]) -> None:
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    broker = brokers(secure=True, set={"authorizer.class.name": authorizer, "super.users": "User:ANONYMOUS"})
    bus, log = Bus.parse(broker.secure_address, broker.client_properties), declared()[0]
    await topics.create(Bus.parse(broker.address))
    administrator = AdminClient({"bootstrap.servers": broker.bootstrap})

    async def grant(right: AclOperation) -> None:
        binding = AclBinding(
            ResourceType.TOPIC, log.name, ResourcePatternType.LITERAL, "User:muster", "*", right, AclPermissionType.ALLOW
        )
        for answer in administrator.create_acls([binding]).values():
            await asyncio.to_thread(answer.result)

    assert ["needs the right Describe)" in sentence for sentence in await topics.check(bus, [log])] == [True]
    with pytest.raises(LogMissing, match="or this client may not see it"):
        await KafkaLog.open(bus, writer=False)
    await grant(AclOperation.DESCRIBE)
    await _soon(lambda: topics.check(bus, [log]), "needs the right DescribeConfigs")
    await grant(AclOperation.DESCRIBE_CONFIGS)
    await _soon(lambda: topics.check(bus, [log]), "[]")
    with pytest.raises(LogClosed, match=f"may not write to {log.name}/0 .* needs the right Write"):
        await KafkaLog.open(bus, writer=True)
    reader = await KafkaLog.open(bus, writer=False)
    with pytest.raises(LogClosed, match=f"may not read {log.name}/0 .* needs the right Read"):
        await reader.wait(0, 60)
    await reader.close()


async def _soon(ask: Callable[[], Awaitable[object]], told: str) -> None:
    """Return once the answer says this: the broker that is asked learns of a right a little later."""
    async with asyncio.timeout(60):
        while told not in str(await ask()):
            continue


async def _write_cycle(bus: Bus, positions: dict[str, int]) -> None:
    """The first record of a log, which says what was read from where."""
    log = await KafkaLog.open(bus, writer=True)
    started = TermStarted(nonce="0" * 32, host="here", build="test", state=GENESIS)
    await log.append(
        encode_cycle(
            Cycle(
                cell="main",
                number=1,
                term=1,
                at_us=0,
                started=started,
                inputs=(),
                decisions=(),
                positions=positions,
                policy="default/1",
                previous=GENESIS,
            )
        )
    )
    await log.close()


async def test_the_log_is_written_and_read_over_tls_with_a_password(secure_kafka: Brokers) -> None:
    bus = Bus.parse(secure_kafka.secure_address, secure_kafka.client_properties)
    topic = _log(secure_kafka)
    await topics.create(bus, [topic])
    log = await KafkaLog.open(bus, topic.name, writer=True)
    await log.append(b"a record")
    assert [record.data for record in await log.read(0)] == [b"a record"]
    await log.close()
