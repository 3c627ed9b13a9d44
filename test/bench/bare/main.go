// Command bare does nothing. The time it takes is what every static Go program
// needs to start and end.
package main

func main() {}
