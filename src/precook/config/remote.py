"""Sections of the config file for a store in a bucket: how it is reached, and what this machine keeps of it."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from precook.config.field_types import NOT_IN_KEYS, Flaw, NonEmpty, PathText, Section, refusal
from precook.config.messages import described
from precook.units import parse_duration

SECRETS = {
    "access_key": "AWS_ACCESS_KEY_ID",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "account_key": "AZURE_STORAGE_ACCOUNT_KEY",
    "client_secret": "AZURE_CLIENT_SECRET",
    "key": "AWS_ACCESS_KEY_ID",
    "password": "AWS_SECRET_ACCESS_KEY",
    "sas_key": "AZURE_STORAGE_SAS_KEY",
    "sas_token": "AZURE_STORAGE_SAS_KEY",
    "secret": "AWS_SECRET_ACCESS_KEY",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "service_account_key": "GOOGLE_APPLICATION_CREDENTIALS",
    "session_token": "AWS_SESSION_TOKEN",
    "token": "AWS_SESSION_TOKEN",
}
"""What people write into a config for a credential, and the variable that it belongs into."""


def _variable(name: str) -> str | None:
    """The variable for a credential that a config gives by this name; None where the name is no credential's."""
    plain = name.lower().replace("-", "_")
    # In front stands whose it is, as in the names of variables.
    for prefix in ("aws_", "azure_", "google_"):
        plain = plain.removeprefix(prefix)
    return SECRETS.get(plain) or SECRETS.get(plain.removeprefix("storage_"))


def no_secrets(value: object) -> object:
    """Refuse credentials, and say where they belong; what was written is not repeated."""
    if isinstance(value, dict):
        flaws = [
            Flaw("credentials are not part of a config", f"set {variable} in the environment instead", (name,))
            for name in value
            if isinstance(name, str) and (variable := _variable(name)) is not None
        ]
        if flaws:
            raise refusal(*flaws)
    return value


def _seconds(value: object) -> object:
    try:
        return parse_duration(value) if isinstance(value, str) else value
    except ValueError as error:
        raise refusal(Flaw(str(error))) from error


def _server(value: object) -> object:
    if isinstance(value, str) and (not value.startswith(("http://", "https://")) or "@" in value or "?" in value):
        raise refusal(Flaw("must be http:// or https:// and a host, without a user or a query"))
    return value


def _positive(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    raise refusal(Flaw(f"must be a duration such as 15m, not {described(value)}"))


class RemoteSettings(Section):
    """How the bucket of the store is reached; nothing here is a secret."""

    endpoint: Annotated[NonEmpty, BeforeValidator(_server)] | None = Field(
        default=None, description="The server, where it is not the provider's own.", json_schema_extra=NOT_IN_KEYS
    )
    region: NonEmpty | None = Field(
        default=None, description="The region, where the environment does not say it.", json_schema_extra=NOT_IN_KEYS
    )
    path_style: bool | None = Field(
        default=None,
        description="Whether the bucket is part of the path of a request and not of its host.",
        json_schema_extra=NOT_IN_KEYS,
    )
    ca_file: PathText | None = Field(
        default=None,
        description="A certificate to trust beside the system's, relative to this file.",
        json_schema_extra=NOT_IN_KEYS,
    )
    allow_http: bool = Field(
        default=False,
        description="Whether requests to another machine may go unencrypted.",
        json_schema_extra=NOT_IN_KEYS,
    )
    patience: Annotated[
        float,
        BeforeValidator(_positive),
        BeforeValidator(_seconds),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}]}),
    ] = Field(
        default=900.0,
        description="How long the server may be away before a command gives up.",
        json_schema_extra=NOT_IN_KEYS,
    )


class CacheSettings(Section):
    """What this machine keeps of a store in a bucket."""

    path: PathText | None = Field(
        default=None,
        description="Its folder, relative to this file; without it, the user's cache folder.",
        json_schema_extra=NOT_IN_KEYS,
    )
