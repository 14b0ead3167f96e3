package refusal

import (
	"regexp"
	"slices"
	"strings"

	"github.com/stowage-dev/stowage/internal/platform/bounded"
)

// Verdict is whether a refusal is because of what Stowage adds.
type Verdict int

// The verdicts.
const (
	Other    Verdict = iota // it is about something else
	Unknown                 // it may be
	Ours                    // the text names what Stowage adds
	NoAnswer                // no replica of the webhook answered, and its failure policy is Fail
)

// Answer is the verdict, with the parts that the text is about. Those of Unknown are all.
type Answer struct {
	Verdict
	Parts Added
}

// mostRead is how many bytes of a text are read. Any program of the cluster may have written it.
const mostRead = 4 << 10

// Judge returns whether the API server refuses pods because of what Stowage adds to them. The text is what it says, and the workload is the name of the
// pods' owner, which is no part of the reason.
func Judge(text, workload string, added Added) Answer {
	text = bounded.Text(text, mostRead)

	// 1. Did a webhook not answer? Then nobody has looked at the pod.
	if m := calling.FindStringSubmatch(text); m != nil {
		if m[1] == ownWebhook || strings.HasSuffix(m[1], "."+ownWebhook) {
			return Answer{Verdict: NoAnswer}
		}
		return Answer{}
	}
	if len(added) == 0 {
		return Answer{}
	}
	why, denied := reason(text, workload)

	// 2. Is it a refusal of the API server's own, about something countable?
	if answer, known := added.counted(why); known {
		return answer
	}

	// 3. Does it name a key or a field that Stowage writes? What is required cannot be missing because of an addition.
	required := requires.MatchString(why) && !forbids.MatchString(why)
	if parts := added.of(func(p *Part) bool { return p.named(why) }); len(parts) > 0 {
		if required {
			return Answer{Unknown, parts}
		}
		return Answer{Ours, parts}
	}
	fields := fieldsIn(why)
	ours := added.of(func(p *Part) bool { return slices.Contains(fields, p.Field) && (p.Field == Requests || !required) })
	sure := ours.of(func(p *Part) bool { return p.Field != Label && p.Field != Annotation }) // pods have others of these, too
	switch {
	case len(sure) > 0:
		return Answer{Ours, sure}
	case len(fields) > 0 && len(ours) == 0, others.MatchString(why), !denied:
		return Answer{}
	case len(ours) > 0:
		return Answer{Unknown, ours}
	}
	return Answer{Unknown, added}
}

// counted judges refusals of the API server's own plugins. It returns false for others.
func (a Added) counted(why string) (Answer, bool) {
	for _, b := range builtIn {
		if !b.is.MatchString(why) {
			continue
		}
		parts := a.of(func(p *Part) bool { return slices.Contains(b.about, p.Field) && p.named(why) })
		if len(parts) == 0 && slices.Contains(b.about, Requests) {
			parts = a.of(func(p *Part) bool { return p.Field == Requests })
		}
		if len(parts) > 0 {
			return Answer{Ours, parts}, true
		}
		// A ResourceQuota may be for the pods of a PriorityClass, and the text has its name alone.
		if parts = a.of(func(p *Part) bool { return p.Field == PriorityClass }); len(parts) > 0 && quota.MatchString(why) {
			return Answer{Unknown, parts}, true
		}
		return Answer{}, true
	}
	return Answer{}, false
}

// ownWebhook is how the names of Stowage's webhooks end.
const ownWebhook = "stowage.dev"

var (
	// calling is how the API server says that a webhook did not answer.
	calling = regexp.MustCompile(`failed calling webhook "([^"]*)"`)
	// subject is the pod that an error is about. Its name, and that of who refuses it, may have any word in it.
	subject = regexp.MustCompile(`(?i)^.*?pods? "[^"]*" is (?:forbidden|invalid): `)
	refuser = regexp.MustCompile(`(?i)admission webhook "[^"]*" denied the request(?: without explanation)?|validatingadmissionpolicy '[^']*' with binding '[^']*' denied request`)
	// denial is how a refusal is told from a failure, such as that of a connection.
	denial = regexp.MustCompile(`(?i)\bden(?:ied|y)\b|forbidden|is invalid|blocked|not allowed|disallowed|violat`)
)

// reason returns what a text says without the names of the pod, of its workload, and of who refuses it, in lower case. Denied reports whether somebody
// has refused the pod, and nothing has failed.
func reason(text, workload string) (why string, denied bool) {
	denied = denial.MatchString(text)
	text = refuser.ReplaceAllString(subject.ReplaceAllString(text, ""), "")
	if workload != "" {
		pods := regexp.MustCompile(`\b` + regexp.QuoteMeta(workload) + `-(?:[a-z0-9]+-)?(?:[bcdfghjklmnpqrstvwxz2456789]{5}|[0-9]+)\b`)
		text = pods.ReplaceAllString(text, "")
	}
	return strings.ToLower(text), denied
}

// builtIn are refusals of the API server's own plugins, with the fields that each may be about.
var builtIn = []struct {
	is    *regexp.Regexp
	about []Field
}{
	{is: regexp.MustCompile(`exceeded quota: `), about: []Field{VM}},
	{is: regexp.MustCompile(`failed quota: .*must specify|(?:usage|ratio) per .*no (?:request|limit) is specified`), about: []Field{Requests, VM}},
	{is: regexp.MustCompile(`(?:usage|ratio) per `), about: []Field{VM}},
	{is: regexp.MustCompile(`insufficient quota to match these scopes|no priorityclass with name`), about: []Field{PriorityClass}},
	{is: regexp.MustCompile(`violates podsecurity|service ?account ".*" not found|error looking up service account|is being terminated`)},
}

// quota is how a text names a ResourceQuota that refuses a pod.
var quota = regexp.MustCompile(`(?:exceeded|failed) quota: `)

// named reports whether a text in lower case names an entry. A key of one plain word, such as type, counts only with its value.
func (p *Part) named(text string) bool {
	key := strings.ToLower(p.Key)
	switch {
	case key == "":
		return false
	case p.Field == PriorityClass:
		return word(text, key) && strings.Contains(text, "priority")
	case strings.HasPrefix(key, ownPrefix) && ownKeys.MatchString(text):
		return true
	case strings.ContainsAny(key, "./"):
		return word(text, key)
	}
	return slices.ContainsFunc(p.Values, func(value string) bool {
		at := regexp.MustCompile(`(?:^|[^a-z0-9_./-])` + regexp.QuoteMeta(key) + `["'\]]*\s*(?:=|==|:|!=|, )\s*["']?` + regexp.QuoteMeta(strings.ToLower(value)) + `(?:$|[^a-z0-9_/-])`)
		return at.MatchString(text)
	})
}

// ownPrefix is that of Stowage's keys.
const ownPrefix = "stowage.dev/"

// ownKeys is how a text names all of them.
var ownKeys = regexp.MustCompile(`stowage\.dev(?:/?$|/?[^a-z0-9/])`)

// word reports whether a text has a key, and not as a part of a longer one.
func word(text, key string) bool {
	inside := func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '/'
	}
	for from := 0; ; {
		i := strings.Index(text[from:], key)
		if i < 0 {
			return false
		}
		i += from
		end := i + len(key)
		if (i == 0 || !inside(text[i-1])) && (end == len(text) || !inside(text[end])) {
			return true
		}
		from = i + 1
	}
}

// fieldNames are fields as people and programs write them, of a text without blanks, hyphens and underscores.
var fieldNames = []struct {
	field Field
	names []string
}{
	{NodeSelector, []string{"nodeselector", "nodelabelselector", "nodeselection"}},
	{NodeAffinity, []string{"affinity"}},
	{Toleration, []string{"tolerat"}},
	{PriorityClass, []string{"priorityclass"}},
	{GracePeriod, []string{"graceperiod"}},
	{Label, []string{"label"}},
	{Annotation, []string{"annotation"}},
}

var (
	blanks = strings.NewReplacer(" ", "", "-", "", "_", "", "\n", "", "\t", "")
	// notFields contain the names of fields, and are others.
	notFields = strings.NewReplacer("antiaffinity", "", "podaffinity", "")
	notLabels = strings.NewReplacer("nodelabelselector", "", "nodelabel", "", "labelselector", "")
	resources = regexp.MustCompile(`\b(?:requests?|limits?)\b.*\b(?:cpu|memory|resources?)\b|\b(?:cpu|memory|resources?)\b.*\b(?:requests?|limits?)\b`)
)

// fieldsIn returns the fields that a text names, of those that Stowage may write.
func fieldsIn(why string) (fields []Field) {
	compact := notFields.Replace(blanks.Replace(why))
	for _, f := range fieldNames {
		text := compact
		if f.field == Label {
			text = notLabels.Replace(text)
		}
		if slices.ContainsFunc(f.names, func(name string) bool { return strings.Contains(text, name) }) {
			fields = append(fields, f.field)
		}
	}
	if resources.MatchString(why) {
		fields = append(fields, Requests)
	}
	return fields
}

var (
	requires = regexp.MustCompile(`\b(?:is|are) (?:required|missing)\b|\bmissing\b|\blacks?\b|\bmust (?:also )?(?:have|set|specify|provide|include|contain|carry|define)\b|\bneeds? (?:a|an|the|to have)\b`)
	forbids  = regexp.MustCompile(`\bnot\b|\bno\b|\bforbid|\bprohibit|\bdisallow|\bcannot\b|\bonly\b|\bempty\b|\bunset\b`)
	// others are what a policy may be about that Stowage does not touch.
	others = regexp.MustCompile(`\bimage|imagepull|\bregistr|privileg|security ?context|\bcapabilit|host ?(?:path|network|port|pid|ipc)|\brun ?as|runasnonroot|\broot\b|seccomp|apparmor|selinux|probe|\bvolume|service ?account|sysctl|\bsecrets?\b|\bports?\b|signature|\bsigned\b|\bcpu\b|\bmemory\b|\breplicas\b|\benv\b|anti-?affinity|pod-? ?affinity`)
)
