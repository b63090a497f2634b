// Package browser tests what people see: the phone, the tour and the console, in
// a real Chromium over the whole system as `make dev` runs it, on a state folder
// of its own. Its files carry the build tag "browser":
//
//	make test-browser
//	make test-browser ARGS='-run=TestTour'
//	make test-browser ARGS='-run=TestPages/console -home=.tuluat'   # a system that runs already
//	make test-browser ARGS='-run=TestMemory -stay=10m -live=200'
//
// A page of the product is a row of pages_test.go: every test of pages takes it
// up, in both themes and at both widths. What a form of the console does is a row
// of actions_test.go. Screenshots are in build/screens, to be looked at: no test
// does that.
package browser
