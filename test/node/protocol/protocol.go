// Package protocol is how a test talks to the first process of a node that it made: a configuration file, then
// commands and answers as lines of JSON.
package protocol

// Config is what the first process of a node does before anything else.
type Config struct {
	Hostname string  `json:"hostname"`
	Mounts   []Mount `json:"mounts"`
	// Cgroups are the directories that the node's cgroups are in. They are removed at the end.
	Cgroups []string `json:"cgroups"`
}

// Mount is a mount of the node. Without a type it is a bind mount.
type Mount struct {
	Type      string `json:"type,omitempty"`
	Source    string `json:"source"`
	Target    string `json:"target"`
	Directory bool   `json:"directory,omitempty"` // of which source and target are created
}

// Command starts the program of a name, or sends it a signal and waits for its end.
type Command struct {
	Start string   `json:"start,omitempty"`
	Path  string   `json:"path,omitempty"`
	Args  []string `json:"args,omitempty"`
	Env   []string `json:"env,omitempty"`
	Log   string   `json:"log,omitempty"`

	Stop   string `json:"stop,omitempty"`
	Signal int    `json:"signal,omitempty"`
}

// Answer is what became of a command. The first one says that the node is there.
type Answer struct {
	Error string `json:"error,omitempty"`
}
