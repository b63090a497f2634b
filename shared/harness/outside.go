package harness

// ObjectKind says what kind of thing outside of Postgres the product makes.
type ObjectKind string

// The kinds of outside objects.
const (
	ObjectSandbox       ObjectKind = "SANDBOX"        // a Pod or local sandbox; its row is in sandboxes
	ObjectNetworkPolicy ObjectKind = "NETWORK_POLICY" // of a sandbox with an allow-list; its row is the sandbox's
	ObjectVolume        ObjectKind = "VOLUME"         // that outlives sandboxes; its row is in outside_objects
	ObjectArchive       ObjectKind = "ARCHIVE"        // in the bucket, with log entries or output; its row is in log_archives
	ObjectFile          ObjectKind = "FILE"           // in the bucket, of a session; its row is in attachments, and before that in outside_objects
	ObjectUpload        ObjectKind = "UPLOAD"         // in parts to the bucket, which nothing of ours makes: none has a row
	ObjectWebhook       ObjectKind = "WEBHOOK"        // registered with a provider by a person; its row is in outside_objects
)

// ObjectKinds returns all of them, in the order in which people are shown them.
func ObjectKinds() []ObjectKind {
	return []ObjectKind{ObjectSandbox, ObjectNetworkPolicy, ObjectVolume, ObjectArchive, ObjectFile, ObjectUpload, ObjectWebhook}
}

// ObjectState says how far an outside object is that has a row in outside_objects.
type ObjectState string

// The states of an outside object.
const (
	ObjectPending  ObjectState = "PENDING"  // about to be made, or made perhaps
	ObjectMade     ObjectState = "MADE"     // it was seen
	ObjectRemoving ObjectState = "REMOVING" // about to be removed, or removed perhaps
	ObjectGone     ObjectState = "GONE"     // proved absent; the reason says why
)
