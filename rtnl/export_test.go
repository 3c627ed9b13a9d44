package rtnl

// Listen is listen for the tests.
var Listen = (*Conn).listen
