package archive

import (
	"errors"
	"net/http"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"tuluat.ai/harness/shared/harness"
)

// translate turns an error of the SDK into one of ours, here and nowhere else.
// Everything that is not an answer of the server is the network's.
func translate(err error) error {
	if err == nil {
		return nil
	}
	api, answered := errors.AsType[smithy.APIError](err)
	if !answered {
		return harness.Wrap(harness.Unavailable, err, "the object store does not answer")
	}
	switch api.ErrorCode() {
	case "NoSuchKey", "NoSuchUpload", "NotFound":
		return harness.Wrap(harness.NotFound, err, "the object store does not have the file (any more)")
	case "NoSuchBucket": // an operator can make it
		return harness.Wrap(harness.Unavailable, err, "the object store has no such bucket")
	case "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "AllAccessDisabled":
		return harness.Wrap(harness.Denied, err, "the object store refuses our credentials")
	case "EntityTooLarge":
		return harness.Wrap(harness.Invalid, err, "the file is larger than the object store takes")
	case "QuotaExceeded", "XMinioStorageFull":
		return harness.Wrap(harness.Exhausted, err, "the object store is full")
	case "SlowDown", "RequestTimeout", "RequestTimeTooSkewed", "ServiceUnavailable", "InternalError", "OperationAborted", "Throttling", "ThrottlingException":
		return harness.Wrap(harness.Unavailable, err, "the object store cannot do it now")
	}
	status := 0
	if response, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		status = response.HTTPStatusCode()
	}
	switch {
	case status == http.StatusNotFound:
		return harness.Wrap(harness.NotFound, err, "the object store does not have the file (any more)")
	case status == http.StatusForbidden || status == http.StatusUnauthorized:
		return harness.Wrap(harness.Denied, err, "the object store refuses our credentials")
	case status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout || status == 0:
		return harness.Wrap(harness.Unavailable, err, "the object store cannot do it now")
	}
	return harness.Wrap(harness.Internal, err, "the object store refused a request")
}

// unsupported reports whether the server knows no such request.
func unsupported(err error) bool {
	api, answered := errors.AsType[smithy.APIError](err)
	return answered && (api.ErrorCode() == "NotImplemented" || api.ErrorCode() == "MethodNotAllowed")
}
