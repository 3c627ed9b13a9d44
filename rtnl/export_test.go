package rtnl

// Listen is listen for the tests, which wait longer than the package does.
var Listen = (*Conn).listen
