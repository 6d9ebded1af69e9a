"""Work on a corpus that is dealt into shards."""

from denserk.errors import UsageError


def refuse_shard(shard_id: int, shard_num: int) -> None:
    """Refuses a shard that there is not.

    Raises:
        UsageError: so it is.
    """
    if not 0 <= shard_id < shard_num:
        raise UsageError(
            f"--shard-id {shard_id} of --shard-num {shard_num}",
            f"shards are numbered 0 to {max(shard_num, 1) - 1}",
        )
