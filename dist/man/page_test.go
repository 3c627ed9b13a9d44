package main

import "testing"

// Text that looks like roff requests and escapes is printed as it is.
func TestPageEscapesText(t *testing.T) {
	p := newPage("a-b", "does \\ and …")
	p.section("USE")
	p.text("Call `a-b -x`.\n.so in 'quotes'\n\nanother paragraph")
	p.verbatim(".nf \"x\"\n'y'\n\n  z")
	p.item("-x", "a flag, as\n  {\n  }\nor")
	p.keys(`
Text, then keys:

key    type    default  meaning
a      int     0        bytes;
                        two lines
b      list    -        of objects
  c    string  -        of one

Text  again
     with more.`)
	const want = `.TH A\-B 8 ` + manDate + ` "cnibox 0.2.0\-dev" "cnibox"
.nh
.ad l
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
a flag, as
.nf
  {
  }
.fi
or
.PP
Text, then keys:
.TP
.B a
(int, default 0) bytes; two lines
.TP
.B b
(list) of objects
.RS
.TP
.B c
(string) of one
.RE
.PP
Text again with more.
`
	if got := p.b.String(); got != want {
		t.Errorf("got:\n%s", got)
	}
}
