package server

import (
	"context"
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/utils/clock"

	"github.com/stowage-dev/stowage/internal/admission"
	"github.com/stowage-dev/stowage/internal/platform/fair"
)

// For how long a reader is not asked for again, and how many of them are kept. Who loses the permission, or the account, may read for
// readerAge, and who gets the permission waits for refusedAge at most. Tokens that the API server does not know are not kept: anybody can
// invent them.
const (
	readerAge   = time.Minute
	refusedAge  = 10 * time.Second
	mostReaders = 100
	// reviewTimeout is how long the API server may take for the reviews of one request.
	reviewTimeout = 5 * time.Second
)

// The rate at which the tokens of a client address are reviewed, in a second and at once. Each costs the API server up to two reviews. A
// reader that is known costs none, and is not limited.
const (
	reviewRate  = 5
	reviewBurst = 50
)

// readers lets requests through whose bearer token the API server knows (TokenReview), and whose user may get the path
// (SubjectAccessReview). controller-runtime's filter does the same, and brings gRPC and OpenTelemetry along: a seventh of all packages of
// the program.
type readers struct {
	tokens authenticationclient.TokenReviewInterface
	access authorizationclient.SubjectAccessReviewInterface
	known  *cache.LRUExpireCache // verdicts, by reader
	limit  *fair.Limiter[string] // of reviews, by client address
	clock  clock.PassiveClock
	log    logr.Logger
}

// reader is a token, as a hash, and the path that it may get.
type reader struct {
	token [sha256.Size]byte
	path  string
}

func newReaders(tokens authenticationclient.TokenReviewInterface, access authorizationclient.SubjectAccessReviewInterface, clk clock.PassiveClock, log logr.Logger) *readers {
	return &readers{
		tokens: tokens, access: access, known: cache.NewLRUExpireCacheWithClock(mostReaders, clk), limit: fair.NewLimiter[string](reviewRate, reviewBurst),
		clock: clk, log: log,
	}
}

// only wraps the handler of a path. Who does not show a valid token gets 401, who may not get the path 403, whose address has too many
// tokens reviewed 429, and all get 500 while the API server does not answer.
func (a *readers) only(path string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "GET and HEAD only", http.StatusMethodNotAllowed)
			return
		}
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "bearer") || token == "" {
			http.Error(w, "a bearer token is missing", http.StatusUnauthorized)
			return
		}
		if v := a.judge(r, token, path); v.status != http.StatusOK {
			http.Error(w, v.text, v.status)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// verdict is what becomes of a reader: the status 200, or another one and what to say.
type verdict struct {
	status int
	text   string
}

// judge returns the verdict about a token, and asks the API server if it has none.
func (a *readers) judge(r *http.Request, token, path string) verdict {
	key := reader{sha256.Sum256([]byte(token)), path}
	if known, ok := a.known.Get(key); ok {
		return known.(verdict)
	}
	if !a.limit.Allow(admission.ClientOf(r.RemoteAddr), a.clock.Now()) {
		return verdict{http.StatusTooManyRequests, "too many requests: ask again in a second"}
	}
	v := a.review(r.Context(), token, path)
	switch v.status {
	case http.StatusOK:
		a.known.Add(key, v, readerAge)
	case http.StatusForbidden:
		a.known.Add(key, v, refusedAge)
	}
	return v
}

// review asks the API server about a token, and about its user.
func (a *readers) review(ctx context.Context, token, path string) verdict {
	// A client that goes is no failure of the API server.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
	defer cancel()
	t, err := a.tokens.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		a.log.Error(err, "the token of a request for metrics is not reviewed", "path", path)
		return verdict{http.StatusInternalServerError, "the API server does not say whose token this is"}
	}
	if !t.Status.Authenticated {
		a.log.V(1).Info("the API server does not know the token of a request for metrics", "path", path, "error", t.Status.Error)
		return verdict{http.StatusUnauthorized, "the API server does not know the token"}
	}
	user := t.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for k, v := range user.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	s, err := a.access.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
	}}, metav1.CreateOptions{})
	if err != nil {
		a.log.Error(err, "the user of a request for metrics is not reviewed", "path", path, "user", user.Username)
		return verdict{http.StatusInternalServerError, "the API server does not say what " + user.Username + " may get"}
	}
	if !s.Status.Allowed {
		return verdict{http.StatusForbidden, user.Username + " may not get " + path}
	}
	return verdict{status: http.StatusOK}
}
