package view

import (
	"time"

	"tuluat.ai/harness/shared/harness"
)

// Leaks is what the last comparison of rows and objects of one kind came to.
type Leaks struct {
	Kind harness.ObjectKind `json:"kind" enum:"SANDBOX,NETWORK_POLICY,VOLUME,ARCHIVE,FILE,UPLOAD,WEBHOOK"`
	Tally
	ComparedAt *time.Time `json:"comparedAt,omitempty" doc:"when all of them had been compared; without it they never were"`
	Reason     string     `json:"reason,omitempty" doc:"why they are not compared, or why something is left"`
}

// Tally is what was counted in one comparison.
type Tally struct {
	Known    int64      `json:"known" doc:"rows that stand for an object"`
	There    int64      `json:"there" doc:"objects that there were"`
	Leaked   int64      `json:"leaked" doc:"objects without a live owner that are left"`
	Lost     int64      `json:"lost" doc:"rows without their object that are left"`
	Removed  int64      `json:"removed" doc:"objects without a live owner that were removed"`
	Marked   int64      `json:"marked" doc:"rows without their object that now say so"`
	OldestAt *time.Time `json:"oldestAt,omitempty" doc:"when the oldest of the leaked was made, where that is known"`
	Examples []string   `json:"examples,omitempty" doc:"the names of some that are leaked or lost"`
}

// Sweep is how the last pass of the sweep went.
type Sweep struct {
	CompletedAt *time.Time  `json:"completedAt,omitempty" doc:"end of the last pass in which every item ran; without it there was none"`
	AgeSeconds  *float64    `json:"ageSeconds,omitempty" doc:"how long that is ago"`
	Items       []SweepItem `json:"items" nullable:"false" doc:"of the last pass, whole or not"`
}

// SweepItem is what one item of a pass came to.
type SweepItem struct {
	Name   string `json:"name"`
	Found  int    `json:"found" doc:"that needed something"`
	Done   int    `json:"done" doc:"of them, those that got it"`
	Left   int    `json:"left" doc:"of them, those left to a later pass"`
	Reason string `json:"reason,omitempty" doc:"why it failed, in part or whole"`
	Note   string `json:"note,omitempty" doc:"why something is left, where that is no failure"`
}
