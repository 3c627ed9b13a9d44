// Package spec has the types of the CNI specification: versions, the call of a runtime, a plugin's
// configuration, results, errors and verbs.
//
// Values have the form of the newest version. [NewRequest] and [ParseResult] read older forms;
// [Result.Encode], [Request.Wire] and [Error.Encode] write them. The package does not touch the
// process, the disk or the kernel, but for the network namespace of a call: [Call.OpenNS].
//
// Begin reading at [Request], which a plugin receives, and [Plugin], which it implements; [Result]
// is what it returns. The files wire.go and parse.go have the older forms.
//
// Sources: CNI specification 0.1.0 to 1.1.0 and the JSON schemas of the result and of the network
// configuration.
package spec
