package applet

import "testing"

// TestPage has texts that roff would take for requests and escapes.
func TestPage(t *testing.T) {
	p := newPage("a-b", "does \\ and …")
	p.Section("USE")
	p.Text("Call `a-b -x`.\n.so in 'quotes'\n\nanother paragraph")
	p.Verbatim(".nf \"x\"\n'y'\n\n  z")
	p.Item("-x", "a flag")
	const want = `.TH A\-B 8 ` + manDate + ` "cnibox 0.1.0" "cnibox"
.SH NAME
a\-b \- does \e and \[u2026]
.SH USE
Call \fBa\-b \-x\fR. .so in \(aqquotes\(aq
.PP
another paragraph
.PP
.nf
\&.nf \(dqx\(dq
\(aqy\(aq

  z
.fi
.TP
.B \-x
a flag
`
	if got := p.String(); got != want {
		t.Errorf("got:\n%s", got)
	}
}
