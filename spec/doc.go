// Package spec is the words of the CNI specification: versions, the call of a
// runtime, a plugin's configuration, results, errors and verbs.
//
// It knows one form of each thing, the newest. What older versions look like
// is known here alone, where bytes come in ([NewRequest], [ParseResult]) and
// go out ([Result.Encode], [Request.Wire], [Error.Encode]). Nothing in it
// touches the process, the disk or the kernel.
//
// Begin reading at [Request], which is all a plugin is told, and [Verbs], which
// is all it has to be. [Result] is what goes back. The files wire.go and parse.go
// hold the older shapes, schema.go the rules of documents that people write.
//
// Sources: CNI specification 0.1.0 to 1.1.0 and the JSON schemas of the
// result and of the network configuration.
package spec
