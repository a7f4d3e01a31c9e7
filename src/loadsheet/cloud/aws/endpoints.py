"""Where calls go instead of to AWS: environment and configuration may send them elsewhere, all of them or a service's.

The order is that of the tools of AWS (docs.aws.amazon.com/sdkref, "Service-specific endpoints"): the service's variable
`AWS_ENDPOINT_URL_EC2`, `AWS_ENDPOINT_URL`, the service's `endpoint_url` in the profile's `services`, the profile's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

#: what ends the names of AWS's own machines, also of an endpoint in one's own network: AWS's partitions, without secret
_SUFFIXES: Final = (
    ".amazonaws.com",
    ".amazonaws.com.cn",
    ".api.aws",
    ".amazonaws.eu",
    ".amazonwebservices.com.cn",
)
_YES: Final = frozenset({"true", "1", "yes", "on"})


def elsewhere(core: Any, services: Iterable[str]) -> str:
    """The places that are not AWS at which these services are asked, with the services if it is not all; "" for none.

    `core`: a session of botocore. What cannot be read is not said here: the calls themselves will say it.
    """
    found: dict[str, list[str]] = {}
    asked = sorted(set(services))
    try:
        if str(core.get_config_variable("ignore_configured_endpoint_urls") or "").lower() in _YES:
            return ""
        profile, sections = core.get_scoped_config(), core.full_config.get("services", {})
    except Exception:  # no such profile, or a file that cannot be read
        profile, sections = {}, {}
    named = sections.get(profile.get("services", ""), {})
    for service in asked:
        section = named.get(_id(service).lower(), {})
        url = (
            os.environ.get(f"AWS_ENDPOINT_URL_{_id(service).upper()}")
            or os.environ.get("AWS_ENDPOINT_URL")
            or (section.get("endpoint_url") if isinstance(section, dict) else "")
            or profile.get("endpoint_url")
        )
        if url and not _of_aws(str(url)):
            found.setdefault(str(url), []).append(service)
    if list(found.values()) == [asked]:
        return next(iter(found))
    return ", ".join(f"{url} ({', '.join(names)})" for url, names in found.items())


def _id(service: str) -> str:
    """The service as variables and files name it.

    >>> _id("elbv2"), _id("service-quotas")
    ('elastic_load_balancing_v2', 'service_quotas')
    """
    from botocore import utils

    plain: dict[str, str] = getattr(utils, "CLIENT_NAME_TO_HYPHENIZED_SERVICE_ID_OVERRIDES", {})
    return plain.get(service, service).replace("-", "_")


def _of_aws(url: str) -> bool:
    """Whether a URL leads to a machine of AWS by its name.

    >>> _of_aws("https://vpce-1.ec2.eu-west-1.vpce.amazonaws.com"), _of_aws("https://amazonaws.com.example.org")
    (True, False)
    """
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return host.endswith(_SUFFIXES)
