"""The topic that the live figures are kept in: its name, and what it has to be like."""

from refold_schemas.errors.live import FiguresTopicUnfit

SUFFIX = "live-figures"
SETTINGS = {
    "cleanup.policy": "compact",
    # The cleaner leaves the newest segment alone: a small one, or nothing would be compacted.
    "segment.bytes": str(64 << 20),
    "segment.ms": str(3_600_000),
    "min.cleanable.dirty.ratio": "0.2",
    "max.message.bytes": str(4 << 20),
    "unclean.leader.election.enable": "false",
}


def check(topic: str, found: tuple[int, dict[str, str]] | None, partition_count: int) -> None:
    """Raise FiguresTopicUnfit for one that nothing could be kept in, or not where it belongs."""
    if found is None:
        raise FiguresTopicUnfit(topic, "it is not there")
    count, settings = found
    if count != partition_count:
        raise FiguresTopicUnfit(
            topic, f"it has {count} partitions, the events have {partition_count}"
        )
    policy = settings.get("cleanup.policy", "")
    if policy != SETTINGS["cleanup.policy"]:
        raise FiguresTopicUnfit(topic, f"it has cleanup.policy={policy}, not compact")
