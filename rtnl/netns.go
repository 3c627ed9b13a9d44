package rtnl

import "cnibox/internal/netns"

type (
	NS     = netns.NS
	ID     = netns.ID
	Sysctl = netns.Sysctl
)

func Host() *NS                       { return netns.Host() }
func Current() (*NS, error)           { return netns.Current() }
func OpenNS(path string) (*NS, error) { return netns.Open(path) }
func NewNS() (*NS, error)             { return netns.New() }
func IDAt(path string) (ID, error)    { return netns.IDAt(path) }
