"""What the topics of a namespace have to be like on Kafka, and what brings them there."""

from collections.abc import Mapping
from typing import NamedTuple

from refold.log.port import Topic
from refold.log.sizes import BATCH_SIZE_MAX, BATCH_SIZE_MIN

REPLICATION_MAX = 3
SNAPSHOT_SEGMENT_BYTES = 64 << 20
SNAPSHOT_SEGMENT_MS = 3_600_000
# The cleaner leaves the newest segment alone: with a broker's default of 1 GiB it would never come.
_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": str(SNAPSHOT_SEGMENT_BYTES),
    "segment.ms": str(SNAPSHOT_SEGMENT_MS),
}
_KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


class TopicState(NamedTuple):
    """A topic as the cluster describes it."""

    topic_id: str
    partition_count: int
    replication: int
    settings: Mapping[str, str]
    led: bool
    """Whether each partition has a leader."""


class Cluster(NamedTuple):
    """Those of the namespace's topics that exist, and how many brokers answer."""

    topics: Mapping[Topic, TopicState]
    broker_count: int


def topic_name(namespace: str, topic: Topic) -> str:
    """The name of a namespace's topic on the cluster."""
    return f"{namespace}.{topic.value}"


def promised(topic: Topic) -> dict[str, str]:
    """The settings without which a topic cannot hold what refold promises."""
    wanted = {
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
    }
    if topic is Topic.SNAPSHOTS:
        wanted["cleanup.policy"] = "compact"
    elif topic is not Topic.DEAD_LETTERS:
        wanted |= _KEPT
    return wanted


def settings_of(topic: Topic, replication: int, batch_size_max: int) -> dict[str, str]:
    """The settings with which a topic is made."""
    return {
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(batch_size_max),
        "min.insync.replicas": "2" if replication >= REPLICATION_MAX else "1",
        "unclean.leader.election.enable": "false",
        **(_COMPACTED if topic is Topic.SNAPSHOTS else _KEPT),
    }


def problems(namespace: str, cluster: Cluster) -> list[str]:
    """What of the topics cannot hold the promises: a worker must not own partitions of them.

    A cluster of less than three brokers is accepted: its acknowledgement survives a killed
    process, though not a lost disk.
    """
    found: list[str] = []
    for topic, state in cluster.topics.items():
        name = topic_name(namespace, topic)
        settings = state.settings
        found += _forgetting(name, topic, state)
        if cluster.broker_count >= REPLICATION_MAX:
            if state.replication < REPLICATION_MAX:
                found.append(
                    f"{name} has {state.replication} replicas on {cluster.broker_count} brokers, "
                    f"not {REPLICATION_MAX}"
                )
            if int(settings.get("min.insync.replicas", "1")) < 2:
                found.append(f"{name} has min.insync.replicas=1, not 2")
    return found + _narrow(namespace, cluster)


def _forgetting(name: str, topic: Topic, state: TopicState) -> list[str]:
    return [
        f"{name} has {setting}={state.settings.get(setting)}, not {wanted}"
        for setting, wanted in promised(topic).items()
        if state.settings.get(setting) != wanted
    ]


def _narrow(namespace: str, cluster: Cluster) -> list[str]:
    size_max = size_max_of(cluster)
    if size_max >= BATCH_SIZE_MIN:
        return []
    return [f"{namespace} takes batches of {size_max} bytes at most, not {BATCH_SIZE_MIN} or more"]


def size_max_of(cluster: Cluster) -> int:
    """Bytes of the largest batch that every topic with the truth in it takes.

    A topic's own `max.message.bytes` counts whatever its brokers have, for replicas too (KIP-74);
    without one it is described with the broker's. A batch larger than a segment is refused as well.
    """
    limits = (
        int(state.settings[name])
        for topic, state in cluster.topics.items()
        for name in ("max.message.bytes", "segment.bytes")
        if topic is not Topic.DEAD_LETTERS and name in state.settings
    )
    return min(limits, default=BATCH_SIZE_MAX)


def changes(namespace: str, ids: Mapping[Topic, str], cluster: Cluster) -> list[str]:
    """What forbids an owner to go on with topics that were as they should be when it began.

    `ids` are those of then. Commands and events alone cannot be made anew; a topic that is missing
    says so itself, to whoever reads it. Replicas are looked at when a worker starts: a broker that
    joins a small cluster must not stop those that serve.
    """
    found: list[str] = []
    for topic, state in cluster.topics.items():
        name = topic_name(namespace, topic)
        if topic in (Topic.COMMANDS, Topic.EVENTS) and state.topic_id != ids[topic]:
            found.append(f"{name} was deleted and made anew")
        found += _forgetting(name, topic, state)
    return found + _narrow(namespace, cluster)


def telling(topic: Topic, state: TopicState) -> dict[str, str]:
    """The settings of a topic that the promises rest on, as they are, with its replicas."""
    names = [*promised(topic), "min.insync.replicas", "max.message.bytes"]
    settings = {name: state.settings.get(name, "") for name in names}
    return {**settings, "replicas": str(state.replication)}


class Plan(NamedTuple):
    """What an upgrade changes: topics to make, partitions to add, settings to correct.

    `said` has a sentence for each change, `left` for what it cannot correct.
    """

    partition_count: int
    make: tuple[Topic, ...]
    grow: Mapping[Topic, int]
    alter: Mapping[Topic, Mapping[str, str]]
    said: tuple[str, ...]
    left: tuple[str, ...]


def plan(namespace: str, cluster: Cluster) -> Plan:
    """What makes the topics of `cluster` what they have to be. Events and commands must exist."""
    counts = {topic: state.partition_count for topic, state in cluster.topics.items()}
    count = max(n for topic, n in counts.items() if topic is not Topic.DEAD_LETTERS)
    said: list[str] = []
    left: list[str] = []
    make = tuple(topic for topic in Topic if topic not in cluster.topics)
    said += (f"makes {topic_name(namespace, t)} with {count} partitions" for t in make)
    grow: dict[Topic, int] = {}
    alter: dict[Topic, dict[str, str]] = {}
    for topic, state in cluster.topics.items():
        name = topic_name(namespace, topic)
        if state.partition_count < count and topic is not Topic.DEAD_LETTERS:
            grow[topic] = count
            said.append(f"{name}: {state.partition_count} partitions become {count}")
        wanted = promised(topic)
        replicated = state.replication >= REPLICATION_MAX
        if replicated and int(state.settings.get("min.insync.replicas", "1")) < 2:
            wanted["min.insync.replicas"] = "2"
        changes = {k: v for k, v in wanted.items() if state.settings.get(k) != v}
        if changes:
            alter[topic] = changes
            said += (f"{name}: {k}={state.settings.get(k)} becomes {v}" for k, v in changes.items())
        if cluster.broker_count >= REPLICATION_MAX and not replicated:
            left.append(
                f"{name} has {state.replication} replicas on {cluster.broker_count} brokers, not "
                f"{REPLICATION_MAX}: `kafka-reassign-partitions.sh` adds them"
            )
    return Plan(count, make, grow, alter, tuple(said), tuple(left))
