package view

// ArchiveProblem says what is wrong with an object of the archive.
type ArchiveProblem string

// What can be wrong.
const (
	ArchiveMissing ArchiveProblem = "MISSING" // a row relies on it
	ArchiveUnknown ArchiveProblem = "UNKNOWN" // no row knows it
	ArchiveChanged ArchiveProblem = "CHANGED" // its digest is another
)

// ArchiveCheck is what a look at a stretch of the archive came to.
type ArchiveCheck struct {
	Checked  int              `json:"checked" doc:"keys that were looked at"`
	Bytes    int64            `json:"bytes" doc:"of objects that are what they should be"`
	Findings []ArchiveFinding `json:"findings" nullable:"false"`
	Next     string           `json:"next,omitempty" doc:"the after of the next look; without it the archive is done"`
}

// ArchiveFinding is one object that is not as it should be.
type ArchiveFinding struct {
	Key     string         `json:"key"`
	Problem ArchiveProblem `json:"problem" enum:"MISSING,UNKNOWN,CHANGED"`
	Detail  string         `json:"detail"`
}
