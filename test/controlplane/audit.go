package controlplane

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// auditPolicy notes the requests of Stowage's service accounts, and nobody else's.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  users: ["` + accountPrefix + stowageServiceAccount + `", "` + accountPrefix + controllersServiceAccount + `"]
- level: None
`

const accountPrefix = "system:serviceaccount:" + StowageNamespace + ":"

// AuditEvent is what is kept of a request (audit.k8s.io/v1, Event).
type AuditEvent struct {
	Verb      string `json:"verb"`
	UserAgent string `json:"userAgent"`
	// RequestReceived is when the API server got the request.
	RequestReceived time.Time `json:"requestReceivedTimestamp"`
	User            struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		Group       string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	// ResponseStatus has why a request was refused.
	ResponseStatus struct {
		Message string `json:"message"`
	} `json:"responseStatus"`
	Annotations map[string]string `json:"annotations"` // such as authorization.k8s.io/decision
}

// Account returns the name of the ServiceAccount that asked.
func (e AuditEvent) Account() string { return strings.TrimPrefix(e.User.Username, accountPrefix) }

// Audit returns the requests of Stowage so far, if [Config.Audit] asked for them. Watches
// are among them only once they have ended.
func (c *Cluster) Audit() ([]AuditEvent, error) {
	file, err := os.Open(c.auditLog())
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	var out []AuditEvent
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e AuditEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%s: %w", c.auditLog(), err)
		}
		out = append(out, e)
	}
	return out, lines.Err()
}

func (c *Cluster) auditLog() string { return filepath.Join(c.Logs, "audit.log") }

// auditArgs are the API server's arguments for the audit log.
func (c *Cluster) auditArgs() ([]string, error) {
	policy := filepath.Join(c.cfg.Dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o644); err != nil {
		return nil, err
	}
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + c.auditLog()}, nil
}
