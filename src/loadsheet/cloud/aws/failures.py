"""What goes wrong when an account is asked, in words: every failure of a call is one `CallFailed`.

A check that lets it through is `unknown`, with the permission that is missing or the reason; nothing that
went wrong looks like an empty answer.
"""

from __future__ import annotations

import functools
import json
from typing import Any, Final, Literal

from loadsheet.cloud.checklist import CannotLook
from loadsheet.errors import one_line, shorten

#: denied: the permission is missing; credentials: none, expired or not valid; missing: what was asked for is
#: not there, or cannot be by its name; unsupported: this endpoint does not know the call; many: more than is read
Kind = Literal["denied", "throttled", "credentials", "unreachable", "missing", "unsupported", "many", "other"]

#: codes of services and of moto's player: docs.aws.amazon.com, "Common errors" of each service's API reference
_CODES: Final[dict[str, Kind]] = {
    **dict.fromkeys(
        (
            "AccessDenied", "AccessDeniedException", "AuthFailure", "AuthorizationError",
            "Client.UnauthorizedOperation", "Forbidden", "OptInRequired", "UnauthorizedException",
            "UnauthorizedOperation", "403",
        ),
        "denied",
    ),
    **dict.fromkeys(
        (
            "BandwidthLimitExceeded", "EC2ThrottledException", "RequestLimitExceeded",
            "RequestThrottled", "RequestThrottledException", "SlowDown", "Throttling", "ThrottlingException",
            "ThrottledException", "TooManyRequestsException",
        ),
        "throttled",
    ),
    **dict.fromkeys(
        (
            "ExpiredToken", "ExpiredTokenException", "IncompleteSignature", "InvalidAccessKeyId",
            "InvalidClientTokenId", "InvalidToken", "MissingAuthenticationToken", "MissingAuthenticationTokenException",
            "RequestExpired", "RequestTimeTooSkewed", "SignatureDoesNotMatch", "UnrecognizedClientException",
        ),
        "credentials",
    ),
    **dict.fromkeys(
        (
            "404", "InvalidBucketName", "InvalidInstanceType", "NoSuchBucket", "NoSuchEntity",
            "NoSuchResourceException", "NotFoundException", "ResourceNotFoundException",
        ),
        "missing",
    ),
    **dict.fromkeys(
        (
            "InvalidAction", "NotImplemented", "NotImplementedException", "UnknownOperationException",
            "UnsupportedOperation", "501",
        ),
        "unsupported",
    ),
}  # fmt: skip
POLICY: Final = "`loadsheet preflight --aws-policy` prints all that is read"
_LOGIN: Final = "log in (`aws sso login`, `aws configure`), or name a profile: `AWS_PROFILE=…`"


class CallFailed(CannotLook):
    """A call that gave no answer: `kind`, the service's own `code`, the `permission` it takes, the `region`."""

    def __init__(
        self,
        reason: str,
        next: str = "",
        *,
        kind: Kind = "other",
        code: str = "",
        permission: str = "",
        region: str = "",
    ) -> None:
        super().__init__(one_line(reason)[:400], next)
        self.kind = kind
        self.code = code
        self.permission = permission
        self.region = region


def is_missing(found: object) -> bool:
    """Whether AWS has answered that there is no such thing: as definite as an answer that has it."""
    return isinstance(found, CallFailed) and found.kind == "missing"


class NotReadOnly(RuntimeError):
    """A call that could change something, or costs money, was about to be made: a fault of ours, and refused."""


@functools.cache
def permissions() -> dict[str, Any]:
    """The table of what is read-only, what is never called, what costs, and what each call is named in a policy."""
    from importlib import resources

    text = resources.files("loadsheet.cloud.aws").joinpath("permissions.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def permission(service: str, operation: str) -> str:
    """The action of a policy that allows a call.

    >>> permission("s3", "ListBuckets"), permission("service-quotas", "GetServiceQuota")
    ('s3:ListAllMyBuckets', 'servicequotas:GetServiceQuota')
    """
    table = permissions()
    named = f"{service}:{operation}"
    action: str = table["actions"].get(named, f"{table['prefixes'].get(service, service)}:{operation}")
    return action


def failed(error: Exception, service: str, operation: str, region: str) -> CallFailed:
    """The failure of a call; `error` is whatever botocore raised."""
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    where = f"{service} in {region}"
    if isinstance(error, CallFailed):
        return error
    if isinstance(error, exceptions.ClientError):
        return _refused(error, service, operation, region)
    none = (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)
    if isinstance(error, none):
        return no_credentials(region)
    text = one_line(str(error))[:200]
    lost = (
        exceptions.CredentialRetrievalError, exceptions.ProfileNotFound, exceptions.TokenRetrievalError,
        exceptions.UnauthorizedSSOTokenError, exceptions.SSOError, exceptions.ConfigParseError,
    )  # fmt: skip
    if isinstance(error, lost):
        return CallFailed(f"no credentials: {text}", _LOGIN, kind="credentials", region=region)
    away = (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.EndpointProviderError)
    if isinstance(error, away):
        return CallFailed(f"{where} does not answer: {text}", "try again", kind="unreachable", region=region)
    if isinstance(error, exceptions.ParamValidationError) and "Invalid bucket name" in str(error):
        return CallFailed(f"{where}: no bucket can have that name", kind="missing", region=region)
    # a page of HTML that is XML as well lacks the element in which an answer of the query protocol stands
    if isinstance(error, ResponseParserError | KeyError):
        return foreign(service, operation, region)
    return CallFailed(f"{where}, {operation}: {type(error).__name__}: {text}", region=region)


def _refused(error: Any, service: str, operation: str, region: str) -> CallFailed:
    """An answer of the service that is an error."""
    answer = error.response if isinstance(error.response, dict) else {}
    code = str(answer.get("Error", {}).get("Code", ""))[:80]
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    kind = _CODES.get(code) or _CODES.get(code.rpartition("#")[2], "other")
    if code.endswith(("NotFound", ".Malformed")):  # EC2: InvalidVolume.NotFound, InvalidVolumeID.Malformed
        kind = "missing"
    if kind == "other" and status in {401, 403}:
        kind = "denied"
    elif kind == "other" and status == 429:
        kind = "throttled"
    action = permission(service, operation)
    about: dict[str, Any] = {"kind": kind, "code": code, "permission": action, "region": region}
    if kind == "denied":
        text = f"not allowed to {action} in {region}" + (f" ({code})" if code == "OptInRequired" else "")
        return CallFailed(text, f"allow `{action}`; {POLICY}", **about)
    if kind == "throttled":
        return CallFailed(f"{service} in {region} was asked too often ({code})", "try again later", **about)
    if kind == "credentials":
        return CallFailed(f"the credentials are not valid, or no longer ({code})", _LOGIN, **about)
    if kind == "unsupported":
        return CallFailed(f"{service} in {region} does not know {operation}", **about)
    message = one_line(str(answer.get("Error", {}).get("Message", "")))
    return CallFailed(f"{service} in {region}, {operation}: {code} {shorten(message, 160)}", **about)


def foreign(
    service: str, operation: str, region: str, what: str = "something that cannot be read"
) -> CallFailed:
    """What answered is not AWS: it says nothing of the account, whatever its status."""
    text = f"{service} in {region}, {operation}: {what} came in place of AWS's answer (from a proxy?)"
    how = "see what stands between: a proxy (`HTTPS_PROXY`), the login page of a network, `AWS_ENDPOINT_URL`"
    return CallFailed(text, how, region=region)


def no_credentials(region: str = "") -> CallFailed:
    """Nothing in the environment or in the files of AWS says who asks."""
    text = "no credentials of AWS in the environment or in ~/.aws"
    how = "`aws sso login`, `AWS_PROFILE=…`, or a machine's own role: `AWS_EC2_METADATA_DISABLED=false`"
    return CallFailed(text, how, kind="credentials", region=region)
