package fake

// Rules says which rules each wire has, by its name.
func Rules() map[string][]string {
	all := map[string][]string{}
	for wire, rules := range rulesOf {
		for _, r := range rules {
			all[wire] = append(all[wire], string(r))
		}
	}
	return all
}
