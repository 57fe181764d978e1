// A third party that watches the network, in Go: it prints each event of the partner topics as one line of JSON.
//
// It knows only docs/asyncapi.json and the .proto files named there, which it compiles when it starts: an event that is
// added to the contracts tomorrow is printed without a change here.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

type document struct {
	Channels map[string]struct {
		Address  string `json:"address"`
		Audience string `json:"x-audience"`
	} `json:"channels"`
	Components struct {
		Messages map[string]struct {
			Protobuf struct {
				File string `json:"file"`
			} `json:"x-protobuf"`
		} `json:"messages"`
	} `json:"components"`
}

type line struct {
	Topic string          `json:"topic"`
	Key   string          `json:"key"`
	Type  string          `json:"type"`
	ID    string          `json:"id"`
	Data  json.RawMessage `json:"data"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := watch(ctx, setting("MERIDIAN_CONTRACTS", "../.."), setting("MERIDIAN_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092")); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func setting(name, fallback string) string {
	if value, ok := os.LookupEnv(name); ok {
		return value
	}
	return fallback
}

// watch prints events, the oldest kept first, until ctx is cancelled.
func watch(ctx context.Context, root, servers string) error {
	topics, schema, err := readContracts(ctx, root)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(servers, ",")...),
		kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	out := json.NewEncoder(os.Stdout)
	for {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		fetches.EachError(func(topic string, _ int32, err error) { fmt.Fprintln(os.Stderr, topic, err) })
		for record := range fetches.RecordsAll() {
			event, err := decode(schema, record)
			if err == nil {
				err = out.Encode(event)
			}
			if err != nil {
				fmt.Fprintf(os.Stderr, "%s/%d/%d passed over: %v\n", record.Topic, record.Partition, record.Offset, err)
			}
		}
	}
}

// readContracts returns the topics for partners and the descriptors of all events.
func readContracts(ctx context.Context, root string) ([]string, linker.Resolver, error) {
	content, err := os.ReadFile(filepath.Join(root, "docs", "asyncapi.json"))
	if err != nil {
		return nil, nil, err
	}
	var contracts document
	if err := json.Unmarshal(content, &contracts); err != nil {
		return nil, nil, err
	}
	var topics, files []string
	for _, channel := range contracts.Channels {
		if channel.Audience == "partner" {
			topics = append(topics, channel.Address)
		}
	}
	for _, message := range contracts.Components.Messages {
		files = append(files, strings.TrimPrefix(message.Protobuf.File, "proto/"))
	}
	slices.Sort(files)
	source := protocompile.SourceResolver{ImportPaths: []string{filepath.Join(root, "proto")}}
	compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&source)}
	compiled, err := compiler.Compile(ctx, slices.Compact(files)...)
	return topics, compiled.AsResolver(), err
}

// decode reads a CloudEvent in binary or structured mode.
func decode(schema linker.Resolver, record *kgo.Record) (*line, error) {
	headers := map[string]string{}
	for _, header := range record.Headers {
		headers[strings.ToLower(header.Key)] = string(header.Value)
	}
	event := &line{Topic: record.Topic, Key: string(record.Key), Type: headers["ce_type"], ID: headers["ce_id"]}
	switch kind := headers["content-type"]; {
	case strings.HasPrefix(kind, "application/cloudevents+json"):
		var body struct {
			Type, ID string
			Data     json.RawMessage
		}
		if err := json.Unmarshal(record.Value, &body); err != nil {
			return nil, err
		}
		event.Type, event.ID, event.Data = body.Type, body.ID, body.Data
	case strings.HasPrefix(kind, "application/json"):
		event.Data = record.Value
	default:
		descriptor, err := schema.FindMessageByName(protoreflect.FullName(event.Type))
		if err != nil {
			return nil, fmt.Errorf("type %q: %w", event.Type, err)
		}
		message := dynamicpb.NewMessage(descriptor.Descriptor())
		if err := proto.Unmarshal(record.Value, message); err != nil {
			return nil, err
		}
		if event.Data, err = (protojson.MarshalOptions{UseProtoNames: true}).Marshal(message); err != nil {
			return nil, err
		}
	}
	return event, nil
}
