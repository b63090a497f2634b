module tuluat.ai/harness/functions/sandbox-exec

go 1.26.0

require tuluat.ai/harness/shared v0.0.0

require golang.org/x/sys v0.50.0 // indirect

replace tuluat.ai/harness/shared => ../../shared
