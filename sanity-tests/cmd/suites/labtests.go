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

// labTest is a test function of a suite that `make test` runs in parts, or a leg of one.
type labTest struct {
	suite, function string
	leg             string // as go shows it, or empty
	// files are where the test is: the function, and what a leg calls.
	files []string
	// atOnce is how many tests like this one run at the same time: one, if nothing runs beside it.
	atOnce int
	// isLong says that only `make test-all` runs it.
	isLong bool
}

// name is that of go.
func (t labTest) name() string {
	if t.leg == "" {
		return t.function
	}
	return t.function + "/" + t.leg
}

func (t labTest) String() string { return t.suite + " " + t.name() }

// labTests reads from the sources which tests the suites have that `make test` runs in
// parts, and those that it never runs: compiling them for that would take a minute.
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

// testsOf are the tests of one package.
func testsOf(s suite, sources map[string][]byte) (tests []labTest, err error) {
	pkg := sourcePackage{fileOf: map[string]string{}, uses: map[string][]string{}}
	parsed := map[string]*ast.File{}
	for path, text := range sources {
		if parsed[path], err = parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution); err != nil {
			return nil, err
		}
		pkg.add(path, parsed[path])
	}
	for path, file := range parsed {
		for _, declared := range file.Decls {
			function, is := declared.(*ast.FuncDecl)
			if !is || function.Recv != nil || !isTest(function.Name.Name) {
				continue
			}
			test := labTest{suite: s.name, function: function.Name.Name, files: []string{path}, atOnce: 1, isLong: s.tier == whole}
			if pkg.isParallel(function.Name.Name) {
				test.atOnce = s.parallel
			}
			legs := pkg.legs(s, file, function)
			for _, one := range legs {
				leg := test
				leg.leg = one.name
				if where := pkg.fileOf[one.calls]; where != "" && where != path {
					leg.files = append(slices.Clone(test.files), where)
				}
				tests = append(tests, leg)
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

// sourcePackage knows the functions and methods of a package by their names alone.
type sourcePackage struct {
	fileOf map[string]string
	uses   map[string][]string
}

func (p sourcePackage) add(path string, file *ast.File) {
	for _, declared := range file.Decls {
		function, is := declared.(*ast.FuncDecl)
		if !is {
			continue
		}
		name := function.Name.Name
		p.fileOf[name] = path
		ast.Inspect(function, func(node ast.Node) bool {
			if call, is := node.(*ast.CallExpr); is {
				p.uses[name] = append(p.uses[name], nameIn(call.Fun))
			}
			return true
		})
	}
}

// isParallel says whether the function, or one that it calls, calls t.Parallel.
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
		return slices.ContainsFunc(p.uses[name], reaches)
	}
	return reaches(function)
}

// namedLeg is the name of a leg, and of the function that it is.
type namedLeg struct{ name, calls string }

// legs are the subtests of a function that are selected one by one: the elements of each
// list of the type []leg in it, or of the list setups where a flag selects them.
func (p sourcePackage) legs(s suite, file *ast.File, function *ast.FuncDecl) (legs []namedLeg) {
	if !s.hasLegs {
		return nil
	}
	within, isList := ast.Node(function), func(list *ast.CompositeLit) bool {
		of, is := list.Type.(*ast.ArrayType)
		return is && nameIn(of.Elt) == "leg"
	}
	if s.selects != "" {
		within, isList = variable(file, "setups"), func(list *ast.CompositeLit) bool { return list.Type != nil }
	}
	ast.Inspect(within, func(node ast.Node) bool {
		list, is := node.(*ast.CompositeLit)
		if !is || !isList(list) {
			return true
		}
		for _, element := range list.Elts {
			one, is := element.(*ast.CompositeLit)
			if !is || len(one.Elts) == 0 {
				continue
			}
			name, is := one.Elts[0].(*ast.BasicLit)
			if !is {
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

// variable is the declaration of a variable, or an empty one.
func variable(file *ast.File, name string) ast.Node {
	for _, declared := range file.Decls {
		declared, is := declared.(*ast.GenDecl)
		if !is || declared.Tok != token.VAR {
			continue
		}
		for _, spec := range declared.Specs {
			if spec, is := spec.(*ast.ValueSpec); is && spec.Names[0].Name == name {
				return spec
			}
		}
	}
	return &ast.BadDecl{}
}

// nameIn is the name of the function, method or type that an expression names.
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
