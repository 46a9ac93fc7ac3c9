// Package features reads the table of docs/capabilities.md: what the driver can do at home and in
// remote clusters, and which test proves it. Its tests check the table.
package features

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Row is a capability in one place.
type Row struct {
	Capability string
	// Where is home or remote.
	Where string
	// Cells are the entries for each kind of real storage.
	Cells map[string]string
}

// Kinds are the kinds of real storage, as in the header of the table.
var Kinds = []string{"reference", "local-path", "static"}

const head = "| capability | where | reference | local-path | static |"

// Read reads the table from a file. A row without a capability belongs to the one above.
func Read(path string) ([]Row, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	_, table, found := strings.Cut(string(text), head+"\n")
	if !found {
		return nil, fmt.Errorf("%s has no table that begins with %q", path, head)
	}
	var rows []Row
	capability := ""
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		if strings.HasPrefix(line, "|--") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) != 2+len(Kinds) {
			return nil, fmt.Errorf("the row %q has %d cells", line, len(cells))
		}
		if cells[0] != "" {
			capability = cells[0]
		}
		row := Row{Capability: capability, Where: cells[1], Cells: map[string]string{}}
		for i, kind := range Kinds {
			row.Cells[kind] = cells[2+i]
		}
		rows = append(rows, row)
	}
	return rows, nil
}

var testName = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")

// Tests returns the names of the tests in a cell.
func Tests(cell string) []string {
	var names []string
	for _, match := range testName.FindAllStringSubmatch(cell, -1) {
		names = append(names, match[1])
	}
	return names
}
