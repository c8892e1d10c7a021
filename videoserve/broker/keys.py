"""Every key the broker keeps in Redis. The Lua scripts see the same table as `K`, so no name is written twice.

A value that ends with ":" is a prefix, completed by what the comment names in braces. Times are unix seconds.
"""

from typing import Final

KEYS: Final[dict[str, str]] = {
    # HASH {job id}: the job as JSON and its changing state, one field each (state.py reads them)
    "job": "job:",
    # ZSET {kind}: queued job ids scored by types.rank
    "queue": "queue:",
    # ZSET {kind}:{batch key}: the same members and scores, only jobs of one shape
    "shape": "shape:",
    # ZSET {kind}: ids of jobs that are leased, scored by the lease's end
    "leases": "leases:",
    # HASH {kind}: job id → estimated seconds of work, for jobs queued or leased where that was known
    "work": "work:",
    # STRING {digest of what is asked}: id of the job that is queued or runs for all that ask for this video
    "twin": "twin:",
    # ZSET {job id}: ids of the jobs that wait for its video, scored by types.rank
    "twins": "twins:",
    # SET {kind}: ids of all jobs that wait for the video of another
    "following": "following:",
    # STRING {kind}: how many jobs have got the video that they waited for
    "answered": "answered:",
    # STREAM {kind}, one entry: its id changes whenever a job became claimable
    "wake": "wake:",
    # STRING: the name of this set of jobs, made when first asked for
    "identity": "identity",
    # STRING: what is written in the file store of these jobs about whose it is
    "files": "files",
    # CHANNEL: ids of jobs whose hash has changed
    "changed": "changed",
    # STRING: the last fencing token given
    "fence": "fence",
    # STRING: the last submission number given
    "order": "order",
    # SET {tenant}: ids queued or running
    "active": "active:",
    # SET {tenant}: ids running
    "running": "running:",
    # ZSET {tenant}: all ids of videos scored by submission number
    "listed": "listed:",
    # ZSET {status}:{tenant}: the ids of videos of one status scored by submission number
    "status": "status:",
    # STREAM {job id}: events, entry id "{seq}-0", fields kind, data (JSON) and fence
    "events": "ev:",
    # SET {sha256}: ids of the jobs that need this file or adapter, and holds of those about to name it in a job
    "ref": "ref:",
    # ZSET: "{sha256} {hold}" scored by the hold's end
    "holds": "holds",
    # HASH: sha256 → job id, files that lost their last job with nobody there to delete them
    "orphans": "orphans",
    # ZSET: ids of finished jobs scored by expires_at
    "expiry": "expiry",
    # STRING {tenant}:{Idempotency-Key}: JSON {body, ids}
    "idem": "idem:",
    # STRING {nonce}, a minute: the answer of a transition, for a caller whose connection died before it came
    "once": "once:",
    # STRING {kind}: moving average of the seconds a job runs
    "pace": "pace:",
    # STREAM with consumer group: deliveries to make, fields job, event, attempt
    "webhooks": "webhooks",
    # ZSET: JSON {job, event, attempt} scored by the time of the next attempt
    "webhooks_due": "webhooks:due",
    # HASH: tenant → the secret its webhooks are signed with
    "webhook_secrets": "webhooks:secrets",
    # HASH: sha256 of the key → JSON {name, tenant, scopes, …}
    "apikeys": "apikeys",
    # SET {kind}: ids of the workers that take jobs; only those whose `worker` key is there still live
    "able": "able:",
    # ZSET: worker ids scored by the end of their last heartbeat's life
    "workers": "workers",
    # STRING {worker id}: JSON of what the worker told about itself
    "worker": "worker:",
    # HASH {model}: shape key → JSON of measured seconds
    "costs": "costs:",
}
