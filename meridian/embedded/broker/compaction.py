"""Compaction by key: of the complete segments of a partition only the latest record of each key is kept.

1. Take the complete segments (all but the active one); nobody changes them any more, so this may run in a thread.
2. Note the latest offset of every key.
3. Copy the batches into one new file: whole where all records are the latest of their key, rebuilt where some are, left
   out where none is. Tombstones (records without value) older than ``delete.retention.ms`` go as well. The last batch
   stays, if need be without records: who reads up to it must get beyond it, and the log ends where it ended.
4. Force the new file to disk and rename it over the first segment, then remove the others. A crash in between leaves
   segments that begin inside the new one; the next start removes them.
"""

from __future__ import annotations

import os
from pathlib import Path

from meridian.embedded.broker.batches import Record, rebuilt, records, whole_batches
from meridian.embedded.broker.log import PartitionLog
from meridian.embedded.broker.producers import ProducerLedger
from meridian.embedded.broker.segment import Segment

MIN_DIRTY_BYTES = 1 << 20
"""Below this much new data compaction is not worth a rewrite."""


def due(log: PartitionLog, min_dirty_bytes: int = MIN_DIRTY_BYTES) -> bool:
    """Whether enough of a compacted log has not been through compaction yet."""
    if not log.config.compacted:
        return False
    dirty_bytes = sum(segment.size_bytes for segment in log.segments if segment.base_offset >= log.compacted_up_to)
    return dirty_bytes >= max(min_dirty_bytes, int(log.size_bytes * log.config.min_dirty_ratio), 1)


def compact(segments: list[Segment], start_offset: int, tombstones_before_ms: int) -> Segment:
    """Merge complete, adjoining segments into one file in the place of the first; returns that segment, recovered."""
    batches = [
        (segment_data[position : position + header.size_bytes], header)
        for segment_data in (memoryview(segment.whole()) for segment in segments)
        for position, header in whole_batches(segment_data)
        if header.last_offset >= start_offset
    ]
    latest = {record.key: record.offset for batch, _ in batches for record in records(batch)}

    def is_kept(record: Record) -> bool:
        expired = record.value is None and record.timestamp_ms < tombstones_before_ms
        return latest[record.key] == record.offset and not expired

    directory = segments[0].path.parent
    temporary = directory / f"{segments[0].path.stem}.tmp"
    with temporary.open("wb") as out:
        for number, (batch, header) in enumerate(batches, 1):
            is_last = number == len(batches)
            kept = [record for record in records(batch) if is_kept(record)]
            if len(kept) == header.record_count and (kept or is_last):
                out.write(batch)
            elif kept or is_last:
                out.write(rebuilt(batch, kept))
        out.flush()
        os.fsync(out.fileno())
    return _put_in_place(temporary, segments, directory)


def _put_in_place(temporary: Path, segments: list[Segment], directory: Path) -> Segment:
    producers = ProducerLedger()
    last_index = segments[-1].saved_index()
    segments[0].index_path.unlink(missing_ok=True)
    temporary.replace(segments[0].path)
    merged = Segment(directory, segments[0].base_offset)
    merged.recover(producers)
    if last_index is not None:
        producers.restore(last_index["producers"])
    merged.save_index(producers)
    return merged
