package pages

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Through returns a page up to the block with this command, and the output of that block.
func Through(markdown, command string) (string, error) {
	blocks, err := Blocks(markdown)
	if err != nil {
		return "", err
	}
	for i, block := range blocks {
		if block.Language != Commands || !strings.Contains("\n"+block.Text, "\n"+command) {
			continue
		}
		if i+1 < len(blocks) && blocks[i+1].Language == Output {
			block = blocks[i+1]
		}
		last := block.Line + strings.Count(block.Text, "\n")
		return strings.Join(strings.SplitAfter(markdown, "\n")[:last], ""), nil
	}
	return "", fmt.Errorf("no command %q", command)
}

var entry = regexp.MustCompile(`(?m)^\| ([^|-][^|]*) \|`)

// Glossary returns the words in the first columns of a glossary's tables, without text in
// parentheses.
func Glossary(markdown string) (words []string) {
	for _, found := range entry.FindAllStringSubmatch(markdown, -1) {
		word, _, _ := strings.Cut(found[1], " (")
		if word != "word" {
			words = append(words, strings.Split(word, ", ")...)
		}
	}
	return words
}

var (
	block      = regexp.MustCompile("(?ms)^ *```([a-z]*)\\s*?\n(.*?)^ *```\\s*?$")
	span       = regexp.MustCompile("`([^`]+)`")
	address    = regexp.MustCompile(`\]\([^)]*\)`)
	name       = regexp.MustCompile(`[a-z.]*liqo\.io/[A-Za-z0-9-]+|liqo[a-z0-9.-]*`)
	ofProgram  = regexp.MustCompile(`(?m)^(?:liqo-csi ([a-z]+).*|--[a-z].*)$`)
	flag       = regexp.MustCompile(`(?:^| )(--[a-z][a-z-]*)`)
	values     = regexp.MustCompile(`--set (\S+)`)
	kubernetes = strings.NewReplacer("READINESS GATES", "")
	// known are flags of kubectl and Helm too.
	known = []string{"--create-namespace", "--help", "--install", "--namespace", "--reset-then-reuse-values", "--set"}
)

// Words returns the words that a user of Kubernetes and Helm has to learn for a page: words of the
// glossary in its text and in the output of commands, names with "liqo" in them, and in commands
// the subcommands and flags of liqo-csi and the values of the chart.
func Words(markdown string, glossary []string) []string {
	var code strings.Builder
	text := block.ReplaceAllStringFunc(markdown, func(whole string) string {
		found := block.FindStringSubmatch(whole)
		if found[1] != Commands {
			return found[2]
		}
		code.WriteString(found[2])
		return ""
	})
	text = span.ReplaceAllStringFunc(text, func(whole string) string {
		code.WriteString(strings.Trim(whole, "`") + "\n")
		return ""
	})
	text = kubernetes.Replace(address.ReplaceAllString(text, "]"))

	words := map[string]bool{}
	for _, word := range glossary {
		if regexp.MustCompile(`(?i)\b` + regexp.QuoteMeta(word) + `(s|es|d|ed)?\b`).MatchString(text) {
			words[word] = true
		}
	}
	for _, found := range name.FindAllString(text+code.String(), -1) {
		found = strings.TrimRight(found, ".-")
		isFile := strings.HasSuffix(found, ".yaml") || strings.ContainsFunc(found, unicode.IsDigit) && !strings.Contains(found, "/")
		if !isFile {
			words[found] = true
		}
	}
	for _, command := range ofProgram.FindAllStringSubmatch(code.String(), -1) {
		if command[1] != "" {
			words[command[1]] = true
		}
		for _, found := range flag.FindAllStringSubmatch(command[0], -1) {
			words[found[1]] = !slices.Contains(known, found[1])
		}
	}
	maps.DeleteFunc(words, func(_ string, counts bool) bool { return !counts })
	for _, found := range values.FindAllStringSubmatch(code.String(), -1) {
		for value := range strings.SplitSeq(found[1], ",") {
			key, _, _ := strings.Cut(value, "=")
			words[key] = true
		}
	}
	return slices.Sorted(maps.Keys(words))
}
