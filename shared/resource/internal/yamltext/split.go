package yamltext

import "bytes"

// Split parts a file into texts that have one document each, or none: comments
// before the first. Joined they are the file.
func Split(file []byte) [][]byte {
	var parts [][]byte
	begin, fresh, directives := 0, true, false // fresh: nothing but comments since begin
	cut := func(at int) {
		if at > begin {
			parts = append(parts, file[begin:at])
		}
		begin, fresh, directives = at, true, false
	}
	for i := 0; i < len(file); {
		end := i
		for end < len(file) && breakAt(file, end) == 0 {
			end++
		}
		next := end
		if end < len(file) {
			next += breakAt(file, end)
		}
		line := file[i:end]
		if i == 0 {
			line = bytes.TrimPrefix(line, mark)
		}
		switch {
		case marker(line, "---"):
			if !fresh || !directives { // what directives say, they say of what follows
				cut(i)
			}
			fresh = false
		case marker(line, "..."):
			cut(next)
		case fresh && bytes.HasPrefix(line, []byte("%")):
			directives = true
		case len(bytes.TrimLeft(line, " \t")) > 0 && bytes.TrimLeft(line, " \t")[0] != '#':
			fresh = false
		}
		i = next
	}
	cut(len(file))
	return parts
}

// marker reports whether a line begins or ends a document.
func marker(line []byte, with string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(with))
	return ok && (len(rest) == 0 || blank(rest[0]))
}

// Begins reports whether a text begins with the line that parts it from one
// before it, comments and directives left out.
func Begins(part []byte) bool {
	for len(part) > 0 {
		end := 0
		for end < len(part) && breakAt(part, end) == 0 {
			end++
		}
		line := bytes.TrimPrefix(part[:end], mark)
		if marker(line, "---") {
			return true
		}
		if line = bytes.TrimLeft(line, " \t"); len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return false
		}
		if end < len(part) {
			end += breakAt(part, end)
		}
		part = part[end:]
	}
	return false
}
