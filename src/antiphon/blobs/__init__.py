"""Where large payloads and artifacts are kept: a local folder, an S3-compatible bucket, or a bucket with an outbox."""
