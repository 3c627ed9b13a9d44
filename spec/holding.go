package spec

// A Holding is one thing that an attachment has of a plugin beside its interface and its addresses.
type Holding struct {
	Kind string `json:"kind"` // as port, limit, VRF
	Text string `json:"text"` // for people
	Data any    `json:"data"` // for programs
}

// KindPort is the kind of published ports.
const KindPort = "port"
