// Package system tests whole journeys: every function as a process of its own,
// started and wired by the YAML of config/ and eventing/, on a real PostgreSQL,
// with real local sandboxes. Only the world outside is played: the language
// model and the caller's side of a webhook. Its files carry the build tag
// "system":
//
//	make system
//	make system ARGS='-run=Chaos -messages=40 -sessions=4 -kills=5 -seed=7'
//	make system ARGS='-run=TestApprovals$$ -approvals=50 -approvalkills=15 -seed=7'
//	make system ARGS='-run=TestFaults -fault=S3'
//	make system ARGS='-run=TestUpgradeAndRollback -from=REV'
//	make system ARGS='-api=anthropic'
//
// The played model speaks OpenAI's wire or Anthropic's, by the test, or as -api says,
// and is as strict as they are: a test fails when one request broke a rule of them.
//
// Nothing in a function knows of these tests. What is done to a function is
// done from outside: at the broker, at the wire to the database (pgproxy), by
// signals, and by what its commands leave in a folder.
package system
