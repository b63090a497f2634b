package event

// TraceParent returns text where it is a W3C trace context of version 00, else
// nothing: it travels in events and rows, so that only the exact form passes.
func TraceParent(text string) string {
	const form = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if len(text) != len(form) || text[:3] != form[:3] {
		return ""
	}
	trace, parent := false, false // any digit but 0
	for at := 3; at < len(form); at++ {
		c := text[at]
		switch {
		case at == 35 || at == 52:
			if c != '-' {
				return ""
			}
		case c >= '0' && c <= '9' || c >= 'a' && c <= 'f':
			trace = trace || at < 35 && c != '0'
			parent = parent || at > 35 && at < 52 && c != '0'
		default:
			return ""
		}
	}
	if !trace || !parent {
		return ""
	}
	return text
}
