package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// labTest is a test function of a suite that `make test` runs in part, or a leg: a subtest that is
// selected and retried by itself.
type labTest struct {
	suite, function string
	leg             string // as go prints it, or ""
	// files are those of the function, and of what a leg calls.
	files []string
	// atOnce is how many such tests run in parallel; 1 if the test is not parallel, even if its subtests are.
	atOnce int
	// isLong: only `make test-all` runs it.
	isLong bool
}

// name returns the name as go prints it.
func (t labTest) name() string {
	if t.leg == "" {
		return t.function
	}
	return t.function + "/" + t.leg
}

func (t labTest) String() string { return t.suite + " " + t.name() }

// labTests reads the tests of all lab suites from their sources, because compiling them would take
// a minute.
func labTests(root string) (all []labTest, err error) {
	for _, s := range suites {
		if s.folder == "" {
			continue
		}
		files, err := filepath.Glob(filepath.Join(root, s.folder, "*_test.go"))
		if err == nil && len(files) == 0 {
			err = fmt.Errorf("no tests in %s", s.folder)
		}
		if err != nil {
			return nil, err
		}
		sources := map[string][]byte{}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			sources[s.folder+"/"+filepath.Base(file)] = text
		}
		tests, err := testsOf(s, sources)
		if err != nil {
			return nil, err
		}
		all = append(all, tests...)
	}
	return all, nil
}

// testsOf returns the tests of one package.
func testsOf(s suite, sources map[string][]byte) (tests []labTest, err error) {
	pkg := sourcePackage{fileOf: map[string]string{}, calls: map[string][]string{}}
	parsed := map[string]*ast.File{}
	for path, text := range sources {
		if parsed[path], err = parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution); err != nil {
			return nil, err
		}
		pkg.add(path, parsed[path])
	}
	for path, file := range parsed {
		for _, declared := range file.Decls {
			function, ok := declared.(*ast.FuncDecl)
			if !ok || function.Recv != nil || !isTest(function.Name.Name) {
				continue
			}
			test := labTest{suite: s.name, function: function.Name.Name, files: []string{path}, atOnce: 1, isLong: s.tier == testAllOnly}
			if pkg.isParallel(function.Name.Name) {
				test.atOnce = s.parallel
			}
			legs := pkg.legs(s, file, function)
			for _, leg := range legs {
				legTest := test
				legTest.leg = leg.name
				if file := pkg.fileOf[leg.calls]; file != "" && file != path {
					legTest.files = append(slices.Clone(test.files), file)
				}
				tests = append(tests, legTest)
			}
			if len(legs) == 0 {
				tests = append(tests, test)
			}
		}
	}
	slices.SortFunc(tests, func(a, b labTest) int { return cmp.Compare(a.name(), b.name()) })
	return tests, nil
}

var testName = regexp.MustCompile(`^Test($|[^a-z])`)

func isTest(function string) bool { return testName.MatchString(function) && function != "TestMain" }

// sourcePackage has, by name, the file of each function or method, and what it calls.
type sourcePackage struct {
	fileOf map[string]string
	calls  map[string][]string
}

func (p sourcePackage) add(path string, file *ast.File) {
	for _, declared := range file.Decls {
		function, ok := declared.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := function.Name.Name
		p.fileOf[name] = path
		ast.Inspect(function, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if ok {
				p.calls[name] = append(p.calls[name], nameIn(call.Fun))
			}
			// Parallel subtests do not make their test parallel.
			return !ok || nameIn(call.Fun) != "Run"
		})
	}
}

// isParallel reports whether the function calls t.Parallel, directly or indirectly.
func (p sourcePackage) isParallel(function string) bool {
	seen := map[string]bool{}
	var reaches func(name string) bool
	reaches = func(name string) bool {
		if name == "Parallel" {
			return true
		}
		if seen[name] {
			return false
		}
		seen[name] = true
		return slices.ContainsFunc(p.calls[name], reaches)
	}
	return reaches(function)
}

// namedLeg has the name of a leg, and of the function that it calls.
type namedLeg struct{ name, calls string }

// legs returns the legs of a function: the elements of each literal of type []leg in it, or of the
// variable setups where a flag selects them.
func (p sourcePackage) legs(s suite, file *ast.File, function *ast.FuncDecl) (legs []namedLeg) {
	if !s.hasLegs {
		return nil
	}
	within, isList := ast.Node(function), func(list *ast.CompositeLit) bool {
		of, ok := list.Type.(*ast.ArrayType)
		return ok && nameIn(of.Elt) == "leg"
	}
	if s.selects != "" {
		within, isList = variable(file, "setups"), func(list *ast.CompositeLit) bool { return list.Type != nil }
	}
	ast.Inspect(within, func(node ast.Node) bool {
		list, ok := node.(*ast.CompositeLit)
		if !ok || !isList(list) {
			return true
		}
		for _, element := range list.Elts {
			one, ok := element.(*ast.CompositeLit)
			if !ok || len(one.Elts) == 0 {
				continue
			}
			name, ok := one.Elts[0].(*ast.BasicLit)
			if !ok {
				continue
			}
			text, err := strconv.Unquote(name.Value)
			if err == nil {
				legs = append(legs, namedLeg{strings.ReplaceAll(text, " ", "_"), nameIn(one.Elts[len(one.Elts)-1])})
			}
		}
		return false
	})
	return legs
}

// variable returns the declaration of a variable, or an empty one.
func variable(file *ast.File, name string) ast.Node {
	for _, declared := range file.Decls {
		declared, ok := declared.(*ast.GenDecl)
		if !ok || declared.Tok != token.VAR {
			continue
		}
		for _, spec := range declared.Specs {
			if spec, ok := spec.(*ast.ValueSpec); ok && spec.Names[0].Name == name {
				return spec
			}
		}
	}
	return &ast.BadDecl{}
}

// nameIn returns the name of the function, method or type in an expression.
func nameIn(expression ast.Expr) string {
	switch expression := expression.(type) {
	case *ast.Ident:
		return expression.Name
	case *ast.SelectorExpr:
		return expression.Sel.Name
	case *ast.CallExpr:
		return nameIn(expression.Fun)
	case *ast.IndexExpr:
		return nameIn(expression.X)
	}
	return ""
}
