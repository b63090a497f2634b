module tuluat.ai/harness/functions/webhook-ingest

go 1.26.0

require tuluat.ai/harness/shared v0.0.0

replace tuluat.ai/harness/shared => ../../shared
