"""Whether an answer is the service's own: a proxy, or a network's login page, answers with status 200, too.

botocore reads what it can and leaves out the rest, so a page of HTML, `{}` and an empty body all come back as an
answer with nothing in it, as a list does that is empty. What tells them apart is that every answer of AWS carries an id
of its request (docs.aws.amazon.com/AmazonS3/latest/API/RESTCommonResponseHeaders.html and the "Common" pages of each
service): in the header, or in the body of the protocols `query` and `ec2`, whose root also has the operation's name. By
protocol, where the list is empty:

- `ec2`, `query`: `<DescribeVolumesResponse>…<requestId>…</requestId><volumeSet/>`
- `rest-xml` (S3): the header `x-amz-request-id`, and XML or nothing
- `json`, `rest-json`: the header `x-amzn-RequestId`, and `{"Budgets": []}` or `{}`: either may stand for none
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final
from xml.etree import ElementTree

from loadsheet.cloud.aws.failures import foreign

_HEADERS: Final = frozenset({"x-amzn-requestid", "x-amz-request-id", "x-amz-requestid"})
_HTML: Final = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html)\b", re.I | re.S
)
#: what stands at the root of an error in XML: of the protocols ec2, query and rest-xml
_ERRORS: Final = frozenset({"Response", "ErrorResponse", "Error"})


def require_own(response: Any, model: Any, region: str) -> None:
    """Raise CallFailed unless an answer comes from the service; takes what botocore's event `after-call` hands on."""
    status = response.status_code
    streams = model.has_streaming_output and status < 300
    body = (b"" if streams else response.content) or b""
    if not is_own(response.headers, body, model.wire_name, status):
        raise foreign(model.service_model.service_name, model.name, region, said(body, status))


def said(body: bytes, status: int) -> str:
    """What came in the place of an answer; it is not quoted."""
    what = "a page of HTML" if _HTML.match(body) else "something else" if body.strip() else "nothing"
    return what if status == 200 else f"{what}, with status {status},"


def is_own(headers: Mapping[str, str], body: bytes, operation: str, status: int = 200) -> bool:
    """Whether an answer comes from the service: no page of HTML, and with the id of a request or in its own form.

    >>> is_own({"x-amzn-RequestId": "f8"}, b"{}", "DescribeBudgets")
    True
    >>> is_own({}, b"{}", "DescribeBudgets"), is_own({}, b"", "DescribeBudgets")
    (False, False)
    >>> is_own({}, b"<DescribeVolumesResponse><volumeSet/></DescribeVolumesResponse>", "DescribeVolumes")
    True
    """
    if _HTML.match(body):
        return False
    if any(name.lower() in _HEADERS for name in headers):
        return True
    text = body.lstrip()
    if text.startswith(b"{"):
        return status >= 300 and _names_an_error(text)
    try:
        root = ElementTree.fromstring(text).tag.rpartition("}")[2]
    except ElementTree.ParseError:
        return False
    return root == f"{operation}Response" if status < 300 else root in _ERRORS


def _names_an_error(text: bytes) -> bool:
    """Whether JSON says which error it is, as AWS does."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict) and bool({"__type", "code", "Code"} & found.keys())
