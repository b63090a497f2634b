package harness

// LogSpec says how long log entries and the output of commands are kept, in days.
type LogSpec struct {
	RetentionDays int `json:"retentionDays"` // in Postgres
	ArchiveDays   int `json:"archiveDays"`   // in the bucket, after that
}

// What an agent gets that does not say.
const (
	DefaultRetentionDays = 30
	DefaultArchiveDays   = 365
)
