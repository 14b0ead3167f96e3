package main

import (
	"io"
	"strings"
	"testing"
	"time"
)

// The report of a run in which each kind of thing fails that can.
func TestReport(t *testing.T) {
	var out strings.Builder
	now := time.Unix(0, 0)
	r := newReport(&out, io.Discard, func() time.Time { return now })
	main, module := step{name: "tests", dir: ".", json: true}, step{name: "hack/docs", dir: "hack/docs", json: true}
	const e2e = `"Package":"github.com/stowage-dev/stowage/test/e2e"`
	r.read(main, strings.NewReader(`
{"Action":"run",`+e2e+`,"Test":"TestSpread"}
{"Action":"run",`+e2e+`,"Test":"TestSpread/a_(b)"}
{"Action":"run",`+e2e+`,"Test":"TestPaused"}
{"Action":"pause",`+e2e+`,"Test":"TestPaused"}
{"Action":"output",`+e2e+`,"Test":"TestSpread/a_(b)","Output":"    e2e_test.go:7: 3 pods\n"}
{"Action":"output",`+e2e+`,"Test":"TestPasses","Output":"not of interest\n"}
{"Action":"run",`+e2e+`,"Test":"TestPasses"}
{"Action":"pass",`+e2e+`,"Test":"TestPasses"}
`))
	now = now.Add(75 * time.Second)
	if got, want := r.state(), "1 tests passed, 0 packages ended; running test/e2e TestSpread"; got != want {
		t.Errorf("the state is %q, want %q", got, want)
	}
	r.read(main, strings.NewReader(`
{"Action":"fail",`+e2e+`,"Test":"TestSpread/a_(b)"}
{"Action":"fail",`+e2e+`,"Test":"TestSpread"}
{"Action":"output",`+e2e+`,"Output":"panic: test timed out\n"}
{"Action":"fail",`+e2e+`,"Elapsed":75.2}
{"Action":"output","Package":"github.com/stowage-dev/stowage/internal/size","Output":"ok  	internal/size	(cached)\n"}
{"Action":"pass","Package":"github.com/stowage-dev/stowage/internal/size"}
{"ImportPath":"github.com/stowage-dev/stowage/internal/vm [github.com/stowage-dev/stowage/internal/vm.test]","Action":"build-output","Output":"vm.go:3: undefined: x\n"}
{"ImportPath":"github.com/stowage-dev/stowage/internal/vm [github.com/stowage-dev/stowage/internal/vm.test]","Action":"build-fail"}
{"Action":"fail","Package":"github.com/stowage-dev/stowage/internal/vm","FailedBuild":"x"}
`))
	r.read(module, strings.NewReader(`{"Action":"run","Package":"docs","Test":"TestLinks"}
{"Action":"fail","Package":"docs","Test":"TestLinks"}
{"Action":"fail","Package":"docs","Elapsed":1}
`))
	if err := r.summary(2 * time.Minute); err == nil {
		t.Error("the run has passed")
	}
	want := ` 1:15  FAIL  test/e2e                            1 tests   75.2 s
    e2e_test.go:7: 3 pods
panic: test timed out
 1:15  FAIL  internal/vm                         0 tests    0.0 s
vm.go:3: undefined: x
 1:15  FAIL  docs                                0 tests    1.0 s

Failed, each with the command that runs it alone:
  test/e2e TestSpread/a_(b)
    make test-one PACKAGE=./test/e2e RUN='TestSpread/a_\(b\)'
  test/e2e TestPaused
    make test-one PACKAGE=./test/e2e RUN='TestPaused'
  internal/vm
    make test-one PACKAGE=./internal/vm
  docs TestLinks
    cd hack/docs && go test -count=1 ./... -run 'TestLinks'
`
	if out.String() != want {
		t.Errorf("the report is\n%s\nwant\n%s", &out, want)
	}
}

func TestReportOfSuccess(t *testing.T) {
	var out strings.Builder
	r := newReport(&out, io.Discard, func() time.Time { return time.Unix(0, 0) })
	r.read(step{dir: ".", json: true}, strings.NewReader(`{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p","Elapsed":0.5}
`))
	if err := r.summary(500 * time.Second); err != nil {
		t.Error(err)
	}
	want := " 0:00  ok    p                                   1 tests    0.5 s\n 0:00  all passed: 1 tests of 1 packages, 8:20\n"
	if out.String() != want {
		t.Errorf("the report is\n%q\nwant\n%q", &out, want)
	}
}

// A run of no test at all has not passed: a flag was wrong.
func TestReportOfNothing(t *testing.T) {
	var out strings.Builder
	r := newReport(&out, io.Discard, func() time.Time { return time.Unix(0, 0) })
	r.read(step{dir: ".", json: true}, strings.NewReader(`{"Action":"pass","Package":"p","Elapsed":0.5}`))
	if err := r.summary(time.Second); err == nil || !strings.Contains(err.Error(), "no test ran") {
		t.Errorf("the error is %v", err)
	}
}

// The compile errors of a package without tests are printed once, with the first package that imports it.
func TestReportOfBuild(t *testing.T) {
	var out strings.Builder
	r := newReport(&out, io.Discard, func() time.Time { return time.Unix(0, 0) })
	r.read(step{dir: ".", json: true}, strings.NewReader(`{"ImportPath":"p/shared","Action":"build-output","Output":"shared.go:3: undefined: x\n"}
{"ImportPath":"p/shared","Action":"build-fail"}
{"Action":"fail","Package":"p/a","FailedBuild":"p/shared"}
{"Action":"fail","Package":"p/b","FailedBuild":"p/shared"}
`))
	if err := r.summary(time.Second); err == nil || strings.Count(out.String(), "undefined: x") != 1 {
		t.Errorf("%v, and the report is\n%s", err, &out)
	}
}
