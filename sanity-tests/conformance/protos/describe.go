// Package protos converts protobuf files into a list of facts, one per message, field, enum value,
// method and extension, so that two descriptions of one interface can be compared line by line.
// Comments and file names are ignored; everything that changes bytes on the wire or marks a secret
// is a fact.
package protos

import (
	"encoding/hex"
	"fmt"
	"sort"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Facts maps the full name of an element to what determines its encoding.
type Facts map[string]string

// Describe returns the facts of one file.
func Describe(file protoreflect.FileDescriptor) Facts {
	facts := Facts{"(package)": string(file.Package()), "(syntax)": file.Syntax().String()}
	facts.messages(file.Messages())
	facts.enums(file.Enums())
	facts.fields(file.Extensions())
	for service := range each(file.Services()) {
		facts.add(service, "service")
		for method := range each(service.Methods()) {
			facts.add(method, fmt.Sprintf("rpc (%s%s) returns (%s%s)",
				stream(method.IsStreamingClient()), method.Input().FullName(),
				stream(method.IsStreamingServer()), method.Output().FullName()))
		}
	}
	return facts
}

func (f Facts) messages(messages protoreflect.MessageDescriptors) {
	for message := range each(messages) {
		f.add(message, fmt.Sprintf("message, map entry: %t", message.IsMapEntry()))
		f.fields(message.Fields())
		f.fields(message.Extensions())
		f.messages(message.Messages())
		f.enums(message.Enums())
	}
}

// fieldList is what the fields of a message and a list of extensions share.
type fieldList interface {
	Len() int
	Get(int) protoreflect.FieldDescriptor
}

func (f Facts) fields(fields fieldList) {
	for field := range each(fields) {
		fact := fmt.Sprintf("%s %s = %d, json %s, packed: %t",
			field.Cardinality(), typeName(field), field.Number(), field.JSONName(), field.IsPacked())
		if oneof := field.ContainingOneof(); oneof != nil {
			fact += fmt.Sprintf(", oneof %s", oneof.Name())
		}
		if field.HasOptionalKeyword() {
			fact += ", optional"
		}
		if field.IsExtension() {
			fact += fmt.Sprintf(", extends %s", field.ContainingMessage().FullName())
		}
		f.add(field, fact)
	}
}

func (f Facts) enums(enums protoreflect.EnumDescriptors) {
	for enum := range each(enums) {
		f.add(enum, "enum")
		for value := range each(enum.Values()) {
			// Values are siblings of their enum; the number identifies the enum.
			f.add(value, fmt.Sprintf("%s = %d", enum.FullName(), value.Number()))
		}
	}
}

// add records a fact together with the element's options (csi_secret, alpha_…,
// deprecated), as bytes, because a marshalled option is the same whichever
// library parsed it.
func (f Facts) add(element protoreflect.Descriptor, fact string) {
	options, err := proto.MarshalOptions{Deterministic: true}.Marshal(element.Options())
	if err != nil {
		fact += ", options unreadable: " + err.Error()
	}
	if len(options) > 0 {
		fact += ", options " + hex.EncodeToString(options)
	}
	f[string(element.FullName())] = fact
}

func typeName(field protoreflect.FieldDescriptor) string {
	switch {
	case field.Message() != nil:
		return string(field.Message().FullName())
	case field.Enum() != nil:
		return string(field.Enum().FullName())
	default:
		return field.Kind().String()
	}
}

func stream(streaming bool) string {
	if streaming {
		return "stream "
	}
	return ""
}

// Differences returns, sorted by name, where ours differ from the official facts.
func Differences(official, ours Facts) []string {
	var differences []string
	for name, want := range official {
		switch got, found := ours[name]; {
		case !found:
			differences = append(differences, fmt.Sprintf("%s: missing (official: %s)", name, want))
		case got != want:
			differences = append(differences, fmt.Sprintf("%s: %s (official: %s)", name, got, want))
		}
	}
	for name, got := range ours {
		if _, found := official[name]; !found {
			differences = append(differences, fmt.Sprintf("%s: %s (not in the official interface)", name, got))
		}
	}
	sort.Strings(differences)
	return differences
}
