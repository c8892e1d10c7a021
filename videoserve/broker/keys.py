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
    # STREAM {kind}, one entry: its id changes whenever a job became claimable
    "wake": "wake:",
    # STRING: the name of this set of jobs, made when first asked for
    "identity": "identity",
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
    # ZSET {tenant}: all ids scored by submission number
    "listed": "listed:",
    # ZSET {status}:{tenant}: the ids of one status scored by submission number
    "status": "status:",
    # STREAM {job id}: events, entry id "{seq}-0", fields kind and data (JSON)
    "events": "ev:",
    # SET {sha256}: ids of the jobs that need this file, and holds of those about to name it in a job
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
