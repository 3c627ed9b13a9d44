// Command bare does nothing. Its time is the minimum that a static Go program needs to start and
// exit.
package main

func main() {}
