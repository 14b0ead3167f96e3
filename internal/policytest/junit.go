package policytest

import (
	"encoding/xml"
	"io"
	"strings"
	"time"
)

// Result is the outcome of one case.
type Result struct {
	File, Case string
	// Differences are what [Compare] returns; there are none if the case passed.
	Differences []string
	Took        time.Duration
}

// The elements of a JUnit report that CI systems read (https://github.com/testmoapp/junitxml).
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		ClassName string        `xml:"classname,attr"`
		Name      string        `xml:"name,attr"`
		Seconds   float64       `xml:"time,attr"`
		Failure   *junitFailure `xml:"failure,omitempty"`
	}
	junitFailure struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes results as a JUnit report, with one suite for each file.
func WriteJUnit(out io.Writer, results []Result) error {
	var report junitSuites
	for _, r := range results {
		if n := len(report.Suites); n == 0 || report.Suites[n-1].Name != r.File {
			report.Suites = append(report.Suites, junitSuite{Name: r.File})
		}
		s := &report.Suites[len(report.Suites)-1]
		c := junitCase{ClassName: r.File, Name: r.Case, Seconds: r.Took.Seconds()}
		report.Tests++
		s.Tests++
		if len(r.Differences) > 0 {
			report.Failures++
			s.Failures++
			c.Failure = &junitFailure{Message: "the decisions are not the expected ones", Text: strings.Join(r.Differences, "\n")}
		}
		s.Cases = append(s.Cases, c)
	}
	if _, err := io.WriteString(out, xml.Header); err != nil {
		return err
	}
	encoder := xml.NewEncoder(out)
	encoder.Indent("", "  ")
	if err := encoder.Encode(report); err != nil {
		return err
	}
	_, err := io.WriteString(out, "\n")
	return err
}
