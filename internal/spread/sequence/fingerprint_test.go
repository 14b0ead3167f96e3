package sequence_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

func not(key string, values ...string) []corev1.NodeSelectorRequirement {
	return []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpNotIn, Values: values}}
}

func TestFingerprint(t *testing.T) {
	pools := func(change ...func([]sequence.Pool)) []sequence.Pool {
		out := []sequence.Pool{
			{Name: "od", Labels: map[string]string{"type": "od", "zone": "a"}, Base: 1, Weight: 20},
			{Name: "spot", Labels: map[string]string{"type": "spot"}, Weight: 80, Max: 100, Overflow: 1},
		}
		for _, c := range change {
			c(out)
		}
		return out
	}
	whole := func(change ...func([]sequence.Pool)) *sequence.Strategy {
		return strategy(t, sequence.EarlierWins, pools(change...)...)
	}
	gaps := []sequence.Gap{{}, {From: 5, Count: sequence.All}}
	strategies := map[string]*sequence.Strategy{
		"as it is":              whole(),
		"another tie":           strategy(t, sequence.LaterWins, pools()...),
		"another order":         strategy(t, sequence.EarlierWins, pools(slices.Reverse)...),
		"another name":          whole(func(p []sequence.Pool) { p[0].Name = "o" }),
		"another label":         whole(func(p []sequence.Pool) { p[0].Labels["zone"] = "b" }),
		"one label less":        whole(func(p []sequence.Pool) { delete(p[0].Labels, "zone") }),
		"a label's text moved":  whole(func(p []sequence.Pool) { p[0].Labels = map[string]string{"type": "odz", "one": "a"} }),
		"text moved to a key":   whole(func(p []sequence.Pool) { p[0].Labels = map[string]string{"typeo": "d", "zone": "a"} }),
		"text moved to a name":  whole(func(p []sequence.Pool) { p[0].Name, p[1].Name = "ods", "pot" }),
		"another key":           whole(func(p []sequence.Pool) { p[0].Labels = map[string]string{"type": "od", "zonf": "a"} }),
		"one seat left out":     whole().Without([]sequence.Gap{{}, {From: 5, Count: 1}}),
		"another one left out":  whole().Without([]sequence.Gap{{}, {From: 6, Count: 1}}),
		"another base":          whole(func(p []sequence.Pool) { p[0].Base = 2 }),
		"another weight":        whole(func(p []sequence.Pool) { p[0].Weight = 21 }),
		"another maximum":       whole(func(p []sequence.Pool) { p[1].Max = 99 }),
		"another overflow":      whole(func(p []sequence.Pool) { p[1].Overflow = 2 }),
		"an expression":         whole(func(p []sequence.Pool) { p[0].Expressions = not("arm", "true") }),
		"another expression":    whole(func(p []sequence.Pool) { p[0].Expressions = not("arm", "false") }),
		"of another pool's":     whole(func(p []sequence.Pool) { p[1].Expressions = not("arm", "true") }),
		"two values":            whole(func(p []sequence.Pool) { p[0].Expressions = not("arm", "true", "false") }),
		"seats left out":        whole().Without(gaps),
		"others left out":       whole().Without([]sequence.Gap{{}, {From: 6, Count: sequence.All}}),
		"of another, left out":  whole(func(p []sequence.Pool) { p[0].Base = 2 }).Without(gaps),
		"of another pool":       whole().Without([]sequence.Gap{{From: 5, Count: sequence.All}, {}}),
		"fewer of them left in": whole().Without([]sequence.Gap{{}, {From: 5, Count: 7}}),
	}
	names := map[sequence.Fingerprint]string{}
	for name, s := range strategies {
		if other, taken := names[s.Fingerprint()]; taken {
			t.Errorf("%q and %q have one fingerprint", name, other)
		}
		names[s.Fingerprint()] = name
	}
	for name, pair := range map[string][2]*sequence.Strategy{
		"made twice":                   {strategies["as it is"], whole()},
		"left out twice":               {strategies["seats left out"], whole().Without(gaps)},
		"a gap of nothing":             {strategies["as it is"], whole().Without([]sequence.Gap{{From: 3}, {}})},
		"a gap of nothing beside one":  {strategies["seats left out"], whole().Without([]sequence.Gap{{From: 3}, gaps[1]})},
		"the text, and what it stands": {mustParse(t, "p=a,weight=1:p=b,weight=2"), mustParse(t, " p=a , weight=1 : p=b,weight=2")},
	} {
		if !pair[0].Same(pair[1]) || pair[0].Fingerprint() != pair[1].Fingerprint() {
			t.Errorf("%s: they differ", name)
		}
	}
	if none := (*sequence.Strategy)(nil); none.Same(whole()) || whole().Same(nil) || !none.Same(nil) {
		t.Error("no strategy is as some strategy is")
	}
}

// Values that are the same bytes one after the other are different values.
func TestFingerprintsDoNotRunTogether(t *testing.T) {
	labels := func(pairs ...string) map[string]string {
		out := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			out[pairs[i]] = pairs[i+1]
		}
		return out
	}
	// The numbers of the first pool are 3 and the letters n, p and r, as the hash writes numbers.
	two := strategy(t, sequence.EarlierWins, sequence.Pool{Name: "x", Labels: labels("a", "b"), Base: 3, Weight: 'n' / 2, Max: 'p' / 2, Overflow: 'r' / 2}, sequence.Pool{Name: "q", Labels: labels("s", "t"), Weight: 1})
	one := strategy(t, sequence.EarlierWins, sequence.Pool{Name: "x", Labels: labels("a", "b", "npr", "q", "s", "t"), Weight: 1})
	if one.Same(two) {
		t.Error("a pool of three labels is two pools of one")
	}
}

func mustParse(t *testing.T, text string) *sequence.Strategy {
	t.Helper()
	s, err := sequence.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
