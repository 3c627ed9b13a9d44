package spec

// Args are the pairs of CNI_ARGS; of a repeated key the last value counts.
type Args map[string]string

// ParseArgs reads K=V;K=V. It splits each pair at its first "=" and skips empty
// parts; a part without "=" is an error with code 4.
func ParseArgs(s string) (Args, error) { panic("spec helper") }
