package disk

import (
	"bytes"
	"fmt"
	"strings"
)

// ProcessStat returns the fields of a process or a thread, with the numbers of proc_pid_stat(5) as indexes, up to 22
// at least. dir is its directory in /proc. It is an error if the process has ended; a zombie has not.
func ProcessStat(dir string) ([]string, error) {
	const longest = 4096 // bytes
	doc, err := Read(dir+"/stat", 0, longest)
	if err != nil {
		return nil, err
	}
	// the name of the program is in parentheses, and may have more of them
	first, last := bytes.IndexByte(doc, '('), bytes.LastIndexByte(doc, ')')
	if first < 0 || last < first {
		return nil, fmt.Errorf("%s/stat: %q", dir, doc)
	}
	fields := []string{"", strings.TrimSpace(string(doc[:first])), string(doc[first+1 : last])}
	if fields = append(fields, strings.Fields(string(doc[last+1:]))...); len(fields) <= 22 {
		return nil, fmt.Errorf("%s/stat: %q", dir, doc)
	}
	return fields, nil
}
