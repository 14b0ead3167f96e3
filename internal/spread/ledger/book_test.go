package ledger

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// TestBook plays the scripts in testdata. Each directive is one event of a book; its result is the actions of the Step that
// follows, and the state of the book as far as it differs. Times are since the script's begin. The directives are the methods of script.
// To write the results anew: go test ./internal/spread/ledger -run TestBook -rewrite
func TestBook(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := newScript()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.run(t, d) })
	})
}

// script is a book, and what it waits for.
type script struct {
	*Book
	now      time.Duration
	write    *Object             // the one under way
	requests map[*Request]string // by name
	ids      int
	printed  string // see change
}

// begin is not 0, so that no time is 0 by chance.
const begin = time.Hour

var scriptStrategies = map[string]*sequence.Strategy{"80:20": simulated["80:20"], "50:50": simulated["50:50 (an edit)"], "full": limited()}

// limited is a strategy with two pods at most.
func limited() *sequence.Strategy {
	s, err := sequence.New([]sequence.Pool{{Name: "0", Labels: map[string]string{"p": "a"}, Weight: 1, Max: 2}}, sequence.EarlierWins)
	if err != nil {
		panic(err)
	}
	return s
}

func newScript() *script {
	timing := DefaultTiming()
	s := &script{now: begin, requests: map[*Request]string{}}
	s.Book = NewBook(&timing, &Shared{}, "w", func() string {
		s.ids++
		return fmt.Sprintf("c%d", s.ids)
	})
	return s
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "new": // another book
		*s = *newScript()
		return ""
	case "burst": // replicas=N: three requests; the last two share the write under way
		var n int64
		d.ScanArgs(t, "replicas", &n)
		request := func() {
			r := &Request{Strategy: scriptStrategies["80:20"], Deadline: s.now + 3*time.Second}
			s.requests[r] = "burst"
			s.Enqueue(s.now, r)
		}
		request()
		s.step()
		s.ReplicasRead(s.now, n)
		s.step()
		s.WriteDone(s.now, WriteOK, &Object{Version: 10, Claims: s.write.Claims})
		s.step()
		request()
		request()
		s.now += s.timing.Quiet
	case "request": // name [deadline=D] [strategy=S] [cost] [held]
		deadline, strategy := 3*time.Second, "80:20"
		d.MaybeScanArgs(t, "deadline", &deadline)
		d.MaybeScanArgs(t, "strategy", &strategy)
		for _, arg := range d.CmdArgs {
			if len(arg.Vals) > 0 || arg.Key == "cost" || arg.Key == "held" {
				continue
			}
			r := &Request{Strategy: scriptStrategies[strategy], Deadline: s.now + deadline, WriteCost: d.HasArg("cost"), Held: d.HasArg("held")}
			s.requests[r] = arg.Key
			s.Enqueue(s.now, r)
		}
	case "give-back": // id
		s.GiveBack(d.CmdArgs[0].Key)
	case "replicas": // N or failed
		if d.CmdArgs[0].Key == "failed" {
			s.ReplicasFailed(s.now)
			break
		}
		var n int64
		mustScan(t, d, 0, &n)
		s.ReplicasRead(s.now, n)
	case "write": // what became of it: ok version=V, conflict, uncertain, busy or refused
		o := s.write
		s.write = nil
		if o == nil {
			t.Fatalf("%s: no write is under way", d.Pos)
		}
		res := map[string]WriteResult{"ok": WriteOK, "conflict": WriteConflict, "uncertain": WriteUncertain, "busy": WriteBusy, "refused": WriteRefused}[d.CmdArgs[0].Key]
		if res == WriteOK {
			d.ScanArgs(t, "version", &o.Version)
		}
		s.WriteDone(s.now, res, o)
	case "ledger": // version=V [deleted]; the claims are the input
		s.LedgerSeen(s.now, object(t, d), d.HasArg("deleted"))
	case "ledger-gone": // version=V
		var version uint64
		d.ScanArgs(t, "version", &version)
		s.LedgerGone(s.now, version)
	case "read": // failed, or version=V and the claims as input
		if d.HasArg("failed") {
			s.LedgerRead(s.now, nil)
			break
		}
		o := object(t, d)
		s.LedgerRead(s.now, &o)
	case "pod": // name seat [id=I] [version=V] [ended]
		p := Pod{Active: !d.HasArg("ended")}
		pool, ordinal, _ := strings.Cut(d.CmdArgs[1].Key, "/")
		p.Pool = pool
		if _, err := fmt.Sscan(ordinal, &p.Ordinal); err != nil {
			t.Fatalf("%s: %v", d.Pos, err)
		}
		d.MaybeScanArgs(t, "id", &p.ID)
		d.MaybeScanArgs(t, "version", &p.Version)
		s.PodSeen(s.now, d.CmdArgs[0].Key, p)
	case "pod-gone": // name
		s.PodGone(s.now, d.CmdArgs[0].Key)
	case "applied": // V
		var version uint64
		mustScan(t, d, 0, &version)
		s.Applied(version)
	case "wait": // D
		var wait time.Duration
		mustScan(t, d, 0, &wait)
		s.now += wait
	case "wake":
		at, ok := s.Wake()
		if !ok {
			t.Fatalf("%s: the book waits for nothing", d.Pos)
		}
		s.now = at
	case "go": // replicas=N: do all that the book wants until it waits for nothing; writes succeed
		var n int64
		d.ScanArgs(t, "replicas", &n)
		return s.play(n) + s.change()
	case "forget":
		s.Forget(s.now)
	case "summary":
		text, err := json.MarshalIndent(s.Summary(), "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		return string(text) + fmt.Sprintf("\n%d unwritten, %d held in pool 0, %d in pool x\n", s.Unwritten(), s.Held(s.now, "0"), s.Held(s.now, "x"))
	case "about": // ids: what is known of claims
		out := ""
		for _, arg := range d.CmdArgs {
			out += fmt.Sprintf("%s:%s\n", arg.Key, words(map[string]bool{"claimed": s.Claimed(s.now, arg.Key), "known": s.Knows(arg.Key)}))
		}
		return out
	case "peek": // the seat that a pod would get
		seat, err := s.Peek(s.now, scriptStrategies["80:20"])
		return fmt.Sprintln(seat, err)
	default:
		t.Fatalf("%s: unknown directive %s", d.Pos, d.Cmd)
	}
	return s.step() + s.change()
}

// change prints the state, and what the book holds only where that is not as it was printed last.
func (s *script) change() string {
	first, rest, _ := strings.Cut(s.state(), "\n")
	if rest == s.printed {
		return first + "\n"
	}
	s.printed = rest
	return first + "\n" + rest
}

func mustScan(t *testing.T, d *datadriven.TestData, arg int, to any) {
	t.Helper()
	text := d.CmdArgs[arg].Key
	var err error
	if wait, ok := to.(*time.Duration); ok {
		*wait, err = time.ParseDuration(text)
	} else {
		_, err = fmt.Sscan(text, to)
	}
	if err != nil {
		t.Fatalf("%s: %v", d.Pos, err)
	}
}

func object(t *testing.T, d *datadriven.TestData) Object {
	t.Helper()
	o := Object{Writer: "other"}
	d.ScanArgs(t, "version", &o.Version)
	for line := range strings.Lines(d.Input) {
		c, ok := parseClaim(strings.TrimSpace(line))
		if !ok {
			t.Fatalf("%s: not a claim: %s", d.Pos, line)
		}
		o.Claims = append(o.Claims, c)
	}
	return o
}

// step has the book decide, and prints what it wants done.
func (s *script) step() string {
	var out strings.Builder
	for _, a := range s.Step(s.now) {
		switch {
		case a.ReadLedger:
			out.WriteString("> read the ledger\n")
		case a.ReadReplicas:
			out.WriteString("> read the count\n")
		case a.Write != nil:
			s.write = &Object{Version: a.Write.Version, Writer: a.Write.Writer, Claims: slices.Clone(a.Write.Claims)}
			fmt.Fprintf(&out, "> write after v%d: %s\n", a.Write.Version, claimTexts(a.Write.Claims))
		case a.Answer != nil:
			r := a.Answer.Result
			fmt.Fprintf(&out, "> answer %s:%s", s.requests[a.Answer], words(map[string]bool{"written": r.Written, "unverified": r.Unverified, "prepared": r.Prepared}))
			if r.Err != nil {
				fmt.Fprintf(&out, " %v\n", r.Err)
			} else {
				fmt.Fprintf(&out, " %s", formatClaim(r.Claim))
				if r.Until != 0 {
					fmt.Fprintf(&out, " until %s", at(r.Until))
				}
				out.WriteString("\n")
			}
		}
	}
	return out.String()
}

// play does what the book wants, in an API server that answers at once and asks for so many pods.
func (s *script) play(replicas int64) string {
	var out strings.Builder
	for range 100 {
		text := s.step()
		for line := range strings.Lines(text) {
			fmt.Fprintf(&out, "%s: %s", at(s.now), strings.TrimPrefix(line, "> "))
		}
		if s.readingCount {
			s.ReplicasRead(s.now, replicas)
			text += "."
		}
		if s.write != nil {
			o := s.write
			s.write, o.Version = nil, max(o.Version, s.newest)+1
			s.WriteDone(s.now, WriteOK, o)
			text += "."
		}
		if text != "" {
			continue
		}
		at, ok := s.Wake()
		if !ok {
			break
		}
		s.now = max(s.now, at)
	}
	return out.String()
}

func words(which map[string]bool) (out string) {
	for _, word := range slices.Sorted(maps.Keys(which)) {
		if which[word] {
			out += " " + word
		}
	}
	return out
}

func claimTexts(claims []Claim) string {
	var texts []string
	for _, c := range claims {
		texts = append(texts, formatClaim(c))
	}
	return strings.Join(texts, ", ")
}

// describe is what a book knows of a claim, beside the claim itself.
func describe(c *claim) string {
	return []string{"unwritten", "written", "apart"}[c.place] + " since " + at(c.firstSeen) + words(map[string]bool{
		"own": c.own, "counted": c.counted, "waiting": c.waiting, "dead": c.end == dead, "void": c.end == void, "kept": c.ahead != nil, "held": c.until != 0, "was-ahead": c.wasAhead,
	})
}

func at(t time.Duration) string {
	if t == never {
		return "never"
	}
	return (t - begin).String()
}

func (s *script) state() string {
	b := s.Book
	var out strings.Builder
	wake, _ := s.Wake()
	_, spent := b.Spent(s.now)
	fmt.Fprintf(&out, "%s: v%d, newest v%d%s", at(s.now), b.version, b.newest, words(map[string]bool{
		"reading": b.reading, "outdated": b.outdated, "writing": b.writing, "unwritten": b.unwritten, "counting": b.readingCount, "idle": b.Idle(), "spent": spent,
	}))
	if !b.known {
		fmt.Fprintf(&out, ", unknown until a read at %s", at(b.readAt))
	}
	if b.failures > 0 {
		fmt.Fprintf(&out, ", %d failures", b.failures)
	}
	if b.heldUntil > s.now {
		fmt.Fprintf(&out, ", no request before %s", at(b.heldUntil))
	}
	if b.countFailures > 0 {
		fmt.Fprintf(&out, ", %d failures of the count", b.countFailures)
	}
	if b.endedAt > 0 {
		fmt.Fprintf(&out, ", a pod ended at %s", at(b.endedAt))
	}
	if b.changedAt > 0 {
		fmt.Fprintf(&out, ", changed at %s", at(b.changedAt))
	}
	if b.latest != nil {
		fmt.Fprintf(&out, ", requests pause at %s", at(b.pausedAt()))
	}
	fmt.Fprintf(&out, "; wake %s\n", at(wake))
	var pools []string
	for _, pool := range slices.Sorted(maps.Keys(b.table)) {
		pools = append(pools, fmt.Sprintf("%s=%d", pool, b.table[pool].count))
	}
	fmt.Fprintf(&out, "%d held: %s\n", b.total, strings.Join(pools, " "))
	var alike []Claim // in one line
	for i, c := range b.claims {
		alike = append(alike, c.Claim)
		if i+1 == len(b.claims) || describe(b.claims[i+1]) != describe(c) {
			fmt.Fprintf(&out, "  %s: %s\n", claimTexts(alike), describe(c))
			alike = nil
		}
	}
	if len(b.byID) != len(b.claims) {
		fmt.Fprintf(&out, "%d claims by id\n", len(b.byID))
	}
	if w := b.watch; w.reached > 0 || w.next.version > 0 || len(w.noted) > 0 {
		fmt.Fprintf(&out, "watch at v%d", w.reached)
		if w.shown > 0 {
			fmt.Fprintf(&out, ", shows until %s", at(w.shown))
		}
		for _, write := range []sighting{w.next, w.last} {
			if write.version > 0 {
				fmt.Fprintf(&out, ", v%d of %s comes", write.version, at(write.at))
			}
		}
		fmt.Fprintf(&out, ", lag %s\n", w.Lag(s.now))
	}
	if len(b.gone) > 0 {
		fmt.Fprintf(&out, "gone: %s\n", strings.Join(slices.Sorted(maps.Keys(b.gone)), " "))
	}
	return out.String()
}
