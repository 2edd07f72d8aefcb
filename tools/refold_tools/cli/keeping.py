"""The commands about a namespace: made, and shown."""

import asyncio

import typer

from refold_tools.cli.options import JsonOption, LogOption

namespace = typer.Typer(
    help="Make or show a namespace of a log.", no_args_is_help=True, add_completion=False
)


@namespace.command("create")
def create(log: LogOption = None, as_json: JsonOption = False) -> int:
    """Make the log and its topics where they are missing; `?partitions=N` in its URL counts."""
    return asyncio.run(_namespace(log, create=True, as_json=as_json))


@namespace.command("show")
def show(log: LogOption = None, as_json: JsonOption = False) -> int:
    """Show a namespace: partitions, topics, how many records each holds, limits."""
    return asyncio.run(_namespace(log, create=False, as_json=as_json))


async def _namespace(given: str | None, *, create: bool, as_json: bool) -> int:
    from refold.log import Topic, open_log
    from refold.settings import log_url
    from refold_tools.cli.output import print_json, say
    from refold_tools.cli.registering import make_ready

    log = open_log(log_url(given))
    made = await log.open(create=create)
    if create:
        await make_ready(log.url)
    try:
        facts = log.facts
        ids = dict(zip(Topic, facts.topic_ids, strict=False))
        bounds = {
            topic: [await log.bounds(topic, one) for one in range(facts.partition_count)]
            for topic in Topic
        }
        if as_json:
            print_json(
                {
                    "log": log.url,
                    "namespace": facts.namespace,
                    "made": made,
                    "partitions": facts.partition_count,
                    "batch_size_max": facts.batch_size_max,
                    "topics": {
                        f"{facts.namespace}.{topic.value}": {
                            "id": ids.get(topic),
                            "bounds": [list(one) for one in bounds[topic]],
                        }
                        for topic in Topic
                    },
                }
            )
            return 0
        if create:
            say(f"{'made' if made else 'there already:'} namespace {facts.namespace} in {log.url}")
        say(
            f"namespace {facts.namespace}, {facts.partition_count} partition(s), "
            f"batches up to {facts.batch_size_max} bytes"
        )
        for topic in Topic:
            count = sum(end - start for start, end in bounds[topic])
            say(f"  {facts.namespace}.{topic.value:<12}  {count:>10,} offsets in use")
        return 0
    finally:
        await log.close()
