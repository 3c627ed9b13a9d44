# Prints what tests said that failed or did not end, of the output of `go test -v`, and what no test
# said, as the compiler's errors.
/^=== (RUN|CONT|NAME) / { now = $3; next }
/^ *=== / { next }
/^ *--- (PASS|SKIP|FAIL): / {
	if ($2 == "FAIL:")
		printf "%s\n%s", $0, said[$3]
	delete said[$3]
	now = ""
	next
}
/^(ok|FAIL|\?) *\t/ { # the end of a package
	if (/^FAIL/) {
		for (name in said)
			if (said[name] != "")
				printf "%s did not end:\n%s", name, said[name]
		print
	}
	for (name in said)
		delete said[name]
	now = ""
	next
}
/^(PASS|FAIL|ok)$/ { next }
now != "" { said[now] = said[now] $0 "\n"; next }
{ print }
