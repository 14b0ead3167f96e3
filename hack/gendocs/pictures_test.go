package main

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
)

var (
	style     = regexp.MustCompile(`(?s)<style>\n(.*?)@media \(prefers-color-scheme: dark\) \{\n(.*?)\n\}\n</style>`)
	colorRule = regexp.MustCompile(`(?m)^\.(\w+) \{ .*?(?:fill|stroke): (#[0-9a-f]{6})`)
	classOf   = regexp.MustCompile(`class="(\w+)"`)
	ownFill   = regexp.MustCompile(`fill="(#\w+)"`)
)

// The texts, lines and arrows of the drawings can be seen in light and dark (WCAG 2.2: texts by 4.5 to 1, and graphics by 3 to 1). An axis is
// decoration. Only pods and their numbers keep their colors.
func TestPicturesAreDark(t *testing.T) {
	for name, draw := range pictures {
		var out bytes.Buffer
		if err := draw(&out); err != nil {
			t.Fatal(err)
		}
		parts := style.FindStringSubmatch(out.String())
		if parts == nil {
			t.Fatalf("%s has no dark variant:\n%s", name, &out)
		}
		for i, scheme := range []string{"light", "dark"} {
			colors := map[string]string{"center": ""} // the number of a pod, which has a color of its own
			for _, m := range colorRule.FindAllStringSubmatch(parts[i+1], -1) {
				colors[m[1]] = m[2]
			}
			for _, m := range classOf.FindAllStringSubmatch(out.String(), -1) {
				color, known := colors[m[1]]
				least := map[string]float64{"title": 4.5, "note": 4.5, "right": 4.5, "middle": 4.5, "arrow": 3, "refused": 3, "tip": 3, "refusal": 3}[m[1]]
				if !known {
					t.Errorf("%s has no color of .%s in %s", name, m[1], scheme)
				} else if got := contrast(color, colors["ground"]); got < least {
					t.Errorf("%s: in %s, .%s has a contrast of %.1f, want %.1f", name, scheme, m[1], got, least)
				}
			}
		}
		for _, m := range ownFill.FindAllStringSubmatch(out.String(), -1) {
			if all := strings.Join(append(fills, inks...), " "); !strings.Contains(all, m[1]) {
				t.Errorf("%s has the color %s in light and dark", name, m[1])
			}
		}
	}
}

// contrast is that of two colors, by WCAG 2.2; 0 if one is empty.
func contrast(a, b string) float64 {
	light := func(color string) (sum float64) {
		for i, part := range []float64{0.2126, 0.7152, 0.0722} {
			var v uint8
			if _, err := fmt.Sscanf(color[1+2*i:3+2*i], "%x", &v); err != nil {
				panic(err)
			}
			x := float64(v) / 255
			if x <= 0.04045 {
				x /= 12.92
			} else {
				x = math.Pow((x+0.055)/1.055, 2.4)
			}
			sum += part * x
		}
		return sum + 0.05
	}
	if a == "" || b == "" {
		return 0
	}
	return max(light(a)/light(b), light(b)/light(a))
}
