"""What was served and what its user then did: one row for each reply, for methods that learn from single replies."""

from __future__ import annotations

import pyarrow as pa

SERVED: pa.Schema = pa.schema(
    [
        ("interaction_id", pa.string()),
        ("session_id", pa.string()),
        ("user_id", pa.string()),
        ("agent", pa.string()),
        ("event_time", pa.timestamp("us", tz="UTC")),
        (
            "prompt",
            pa.string(),
        ),  # JSON: the messages exactly as logged (tool calls, reasoning and names kept)
        ("completion", pa.string()),  # JSON: the reply, likewise
        ("prompt_key", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),  # token ids as logged; null where they were not
        ("completion_ids", pa.list_(pa.int32())),
        ("logprob", pa.float64()),  # nats, summed over the reply's tokens; null where it was not logged
        ("tokens", pa.int64()),
        ("temperature", pa.float64()),
        ("top_p", pa.float64()),
        ("propensity", pa.float64()),
        ("model_version", pa.string()),
        ("adapter_digest", pa.string()),
        ("verdict", pa.int8()),  # +1 thumb up or accept, -1 thumb down or reject, null: nothing was said
        ("copied", pa.bool_()),
        ("retried", pa.bool_()),
        ("edit", pa.string()),  # the corrected text; null where nobody corrected it
        ("next_message", pa.string()),  # what the user wrote next; null where that is not known
        ("comment", pa.string()),
        (
            "evidence",
            pa.list_(pa.string()),
        ),  # ids of the signals behind the columns from `verdict` on, sorted
    ]
)
