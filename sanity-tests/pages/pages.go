// Package pages reads the commands in a page of documentation, for tests that run them from top to
// bottom: fenced blocks of sh are commands, and a block of text below one is their output.
package pages

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

// Languages of blocks.
const (
	Commands = "sh"
	Output   = "text"
)

// Block is a fenced block of a page.
type Block struct {
	// Line is the number of its first line in the page.
	Line     int
	Language string
	Text     string
}

var fence = regexp.MustCompile("^( *)```([A-Za-z0-9]*)[ \t]*$")

// Blocks returns the fenced blocks of a page, without the indentation of those in lists.
func Blocks(markdown string) (blocks []Block, err error) {
	var open *Block
	indent := ""
	number := 0
	for line := range strings.Lines(markdown) {
		number++
		found := fence.FindStringSubmatch(strings.TrimRight(line, "\n"))
		switch {
		case found == nil && open != nil:
			open.Text += strings.TrimPrefix(line, indent)
		case found == nil:
		case open == nil:
			open, indent = &Block{Line: number + 1, Language: found[2]}, found[1]
		case found[2] != "":
			return nil, fmt.Errorf("line %d: a block begins within the one of line %d", number, open.Line)
		default:
			blocks, open = append(blocks, *open), nil
		}
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: the block does not end", open.Line)
	}
	return blocks, nil
}

// Command is what a user pastes at once: a line with its continuations and here-documents.
type Command struct {
	Line int
	Text string
}

var hereDocument = regexp.MustCompile(`<<(-?)\s*(['"]?)([A-Za-z_]+)(['"]?)`)

// Commands returns the commands of a block of sh, without comments.
func (b Block) Commands() (commands []Command, err error) {
	var open *Command
	end := "" // of the here-document
	number := b.Line - 1
	for line := range strings.Lines(b.Text) {
		number++
		plain := strings.TrimSpace(line)
		switch {
		case end != "":
			open.Text += line
			if plain == end {
				end = ""
			}
		case open == nil && (plain == "" || strings.HasPrefix(plain, "#")):
			continue
		case open == nil:
			open = &Command{Line: number, Text: line}
		default:
			open.Text += line
		}
		if end == "" && plain != "" {
			if found := hereDocument.FindStringSubmatch(line); found != nil && !strings.HasPrefix(plain, found[3]) {
				end = found[3]
			}
		}
		if end == "" && !strings.HasSuffix(plain, `\`) {
			commands, open = append(commands, *open), nil
		}
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: the command does not end", open.Line)
	}
	return commands, nil
}

// Step is a block of commands, and its output as far as the page shows it.
type Step struct {
	Commands []Command
	Shown    string
}

// Steps returns the blocks of commands of a page, in its order. A block that is neither commands,
// nor their output, nor in one of the other languages is an error: it would be unclear whether
// users should paste it.
func Steps(markdown string, others ...string) (steps []Step, err error) {
	blocks, err := Blocks(markdown)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, other := range others {
		known[other] = true
	}
	before := ""
	for _, block := range blocks {
		switch {
		case block.Language == Commands:
			commands, failed := block.Commands()
			err = errors.Join(err, failed)
			steps = append(steps, Step{Commands: commands})
		case block.Language == Output && before == Commands:
			steps[len(steps)-1].Shown = block.Text
		case !known[block.Language]:
			err = errors.Join(err, fmt.Errorf("line %d: a block of %q: commands are %s, and what they print is %s below them",
				block.Line, block.Language, Commands, Output))
		}
		before = block.Language
	}
	return steps, err
}

// Missing returns words of the output on the page that are not in the actual output. Words with
// digits and truncated words (…) are names, sizes and times of one run, and are not compared.
func Missing(shown, output string) (missing []string) {
	for word := range strings.FieldsSeq(shown) {
		if strings.ContainsRune(word, '…') || strings.ContainsFunc(word, unicode.IsDigit) {
			continue
		}
		if !strings.Contains(output, word) {
			missing = append(missing, word)
		}
	}
	return missing
}
