package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/stowage-dev/stowage/internal/capability"
	"github.com/stowage-dev/stowage/internal/platform/leader"
)

// The bounds of connections to another replica. One that is not reached in time is as good as gone.
const (
	siblingDialTimeout = 250 * time.Millisecond
	siblingConnections = 64 // to each
)

// siblings are the other replicas of the webhook, as the endpoints of its Service name them.
type siblings struct {
	own       string // this replica's pod
	endpoints toolscache.Store
	client    *http.Client
}

var _ capability.Siblings = &siblings{}

// newSiblings returns the siblings of a replica. They prove who they are by the certificate that all replicas share.
func newSiblings(replica string, endpoints toolscache.Store, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *siblings {
	verify := func(state tls.ConnectionState) error {
		own, err := certificate(nil)
		switch {
		case err != nil:
			return err
		case len(state.PeerCertificates) == 0 || !bytes.Equal(state.PeerCertificates[0].Raw, own.Certificate[0]):
			return errors.New("it has another serving certificate")
		}
		return nil
	}
	return &siblings{own: leader.PodOf(replica), endpoints: endpoints, client: &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:     (&net.Dialer{Timeout: siblingDialTimeout}).DialContext,
			MaxConnsPerHost: siblingConnections, MaxIdleConnsPerHost: siblingConnections, IdleConnTimeout: idleTimeout / 2,
			TLSHandshakeTimeout: siblingDialTimeout, DisableCompression: true,
			TLSClientConfig: &tls.Config{
				MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
				InsecureSkipVerify: true, // VerifyConnection demands our own certificate, which is more
				VerifyConnection:   verify,
			},
		},
	}}
}

// Knows implements [capability.Siblings]. A container that has restarted has another name than before, in the same pod.
func (s *siblings) Knows(replica string) bool { return s.address(replica) != "" }

// address returns where another replica answers, or "" if it is no endpoint that serves.
func (s *siblings) address(replica string) string {
	pod := leader.PodOf(replica)
	if pod == "" || pod == s.own {
		return ""
	}
	for _, obj := range s.endpoints.List() {
		slice, ok := obj.(*discoveryv1.EndpointSlice)
		if !ok || len(slice.Ports) == 0 || slice.Ports[0].Port == nil {
			continue
		}
		for _, e := range slice.Endpoints {
			is := e.TargetRef != nil && e.TargetRef.Kind == "Pod" && e.TargetRef.Name == pod
			if is && len(e.Addresses) > 0 && ptr.Deref(e.Conditions.Serving, true) {
				return net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*slice.Ports[0].Port)))
			}
		}
	}
	return ""
}

// errNoSibling means that a replica is no endpoint of the Service.
var errNoSibling = errors.New("it is no endpoint of the webhook's Service")

// Send implements [capability.Siblings].
func (s *siblings) Send(ctx context.Context, replica, path string, header http.Header, body []byte, most int64) ([]byte, error) {
	address := s.address(replica)
	if address == "" {
		return nil, errNoSibling
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = header
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, most))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("HTTP %s", resp.Status)
	}
	return answer, nil
}
