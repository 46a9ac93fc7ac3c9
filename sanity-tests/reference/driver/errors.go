package driver

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"storage.liqo.io/sanity-tests/reference/host"
	"storage.liqo.io/sanity-tests/reference/state"
)

func invalidf(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

func notFoundf(format string, args ...any) error {
	return status.Errorf(codes.NotFound, format, args...)
}

func preconditionf(format string, args ...any) error {
	return status.Errorf(codes.FailedPrecondition, format, args...)
}

func exhaustedf(format string, args ...any) error {
	return status.Errorf(codes.ResourceExhausted, format, args...)
}

func existsf(format string, args ...any) error {
	return status.Errorf(codes.AlreadyExists, format, args...)
}

func rangef(format string, args ...any) error {
	return status.Errorf(codes.OutOfRange, format, args...)
}

func abortedf(format string, args ...any) error {
	return status.Errorf(codes.Aborted, format, args...)
}

// coded adds a gRPC code to an error of another package, unless it has one.
func coded(err error, subject string) error {
	switch _, carriesCode := status.FromError(err); {
	case err == nil || carriesCode:
		return err
	case errors.Is(err, state.ErrNotFound):
		return notFoundf("there is no %s", subject)
	case errors.Is(err, host.ErrUnknownOption):
		return invalidf("%s: %v", subject, err)
	case errors.Is(err, host.ErrOffline):
		return preconditionf("%s cannot grow while it is in use, but will when it is staged again: %v", subject, err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return status.Errorf(status.FromContextError(err).Code(), "%s: %v", subject, err)
	default:
		return status.Errorf(codes.Internal, "%s: %v", subject, err)
	}
}
