package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// floorPatch is the constant answer: every fake node has this label.
const floorPatch = `[{"op":"add","path":"/spec/nodeSelector","value":{"kubernetes.io/os":"linux"}}]`

// serveFloor runs one replica of the floor until its standard input ends, which it
// does when the process that started it is gone.
func serveFloor(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: bench floor ADDRESS CERTDIR")
	}
	server := &http.Server{
		Addr:              args[0],
		Handler:           http.HandlerFunc(answerFloor),
		ReadHeaderTimeout: 3 * time.Minute,                                                             // of a connection that waits for its first request, too: as Stowage
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}, // as Stowage
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = server.Close()
	}()
	err := server.ListenAndServeTLS(filepath.Join(args[1], "tls.crt"), filepath.Join(args[1], "tls.key"))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func answerFloor(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// The first uid is the request's; nothing else is looked at.
	_, rest, _ := bytes.Cut(body, []byte(`"uid":"`))
	uid, _, _ := bytes.Cut(rest, []byte(`"`))
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":true,"patchType":"JSONPatch","patch":%q}}`,
		uid, floorPatchBase64)
}
