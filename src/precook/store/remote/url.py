"""URLs of stores: where one lies, how it is reached, and what is refused.

No secret is ever part of a URL or of an option: credentials come from the environment.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import SplitResult, unquote, urlsplit

from precook.errors import ConfigError, ConfigProblem, printable
from precook.identity.digest import derived_digest

if TYPE_CHECKING:
    from precook.config.schema import Settings

SCHEMES = ("s3", "gs", "az", "file", "memory")
PATIENCE = 900.0
"""Seconds that a server may be away before we give up."""
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_PART = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._=+@ -]{1,200}")
_CONTEXT = "precook remote store 1"
_SECRETS_CONTEXT = "precook remote credentials 1"
_IDENTITY = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_SKIP_SIGNATURE",
    "AZURE_CLIENT_ID",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_TENANT_ID",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
)
"""Variables that say who asks, none of which is a secret: two that differ in one of them share no courier."""
_SECRETS = ("AZURE_STORAGE_SAS_KEY", "GOOGLE_SERVICE_ACCOUNT_KEY")
"""Variables that say who asks and are secrets: of them nothing but a digest goes any further."""
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}


def is_url(place: object) -> TypeGuard[str | StoreUrl]:
    """Whether a store is named by URL, and not by path."""
    return isinstance(place, StoreUrl) or (isinstance(place, str) and _URL.fullmatch(place) is not None)


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """How a bucket is reached; nothing here is a secret."""

    endpoint: str | None = None
    """The server, where it is not the provider's own."""
    region: str | None = None
    path_style: bool | None = None
    """Whether the bucket is part of the path of a request, and not of its host."""
    ca_file: str | None = None
    """A certificate to trust beside the system's."""
    allow_http: bool = False
    """Whether requests may go unencrypted to another machine than this one."""
    patience: float = PATIENCE
    """Seconds that the server may be away before we give up."""

    def __post_init__(self) -> None:
        if not 0 < self.patience < math.inf:
            message = "patience must be positive and finite"
            raise ValueError(message)


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """Where a store lies."""

    scheme: str
    bucket: str
    """The bucket or container; of `file`, nothing."""
    prefix: str
    """What the names of all its objects begin with, without a slash at the end; of `file`, the folder."""
    options: RemoteOptions = RemoteOptions()
    """How it is reached."""
    cache: Path | None = None
    """The folder for what is near of it; None for the user's own."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix.lstrip('/')}" if self.prefix else "")


def wrong_url(message: str, hint: str) -> ConfigError:
    """The error for a URL or an option that cannot be used."""
    return ConfigError(ConfigProblem("", None, message, hint))


def parse_url(text: str, options: RemoteOptions | None = None) -> StoreUrl:
    """The place that a URL names; `ConfigError` for one that names none, or that holds credentials."""
    options = options or RemoteOptions()
    match = _URL.fullmatch(text)
    scheme = match[1] if match else ""
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise wrong_url(f"{printable(scheme)}:// names no store that precook knows", f"there are {known}")
    # Before anything is said about the rest: a message must not repeat a secret.
    parts = _split(text, f"a {scheme}:// URL cannot be read", f"write {scheme}://bucket/prefix")
    if "@" in parts.netloc or parts.query or parts.fragment or "?" in text or "#" in text:
        hint = "credentials come from the environment, other settings from `remote:` in the config"
        raise wrong_url(f"a {scheme}:// URL has neither a user, a password nor a query", hint)
    if scheme == "file":
        folder = unquote(parts.path)
        if parts.netloc or not folder.startswith("/") or "\0" in folder:
            raise wrong_url("a file:// URL has three slashes and an absolute path", "write file:///folder/store")
        return StoreUrl(scheme, "", os.path.normpath(folder), options)
    prefix = parts.path.strip("/")
    wrong = [part for part in prefix.split("/") if _PART.fullmatch(part) is None] if prefix else []
    if _BUCKET.fullmatch(parts.netloc) is None or wrong:
        hint = f"write {scheme}://bucket/prefix with letters, digits, dots, dashes and underscores"
        raise wrong_url(f"{printable(text)} names no bucket and prefix", hint)
    return StoreUrl(scheme, parts.netloc, prefix, options)


def _split(text: str, message: str, hint: str) -> SplitResult:
    """The parts of a URL; what is wrong with one is not repeated, for a password may be part of it."""
    try:
        return urlsplit(text)
    except ValueError:
        raise wrong_url(message, hint) from None


def find_place(settings: Settings, base: Path) -> Path | StoreUrl:
    """Where the store of a config lies, whose paths are relative to `base`."""
    if not is_url(settings.store):
        return base / settings.store
    options = settings.remote.model_dump()
    if settings.remote.ca_file is not None:
        options["ca_file"] = os.fspath((base / settings.remote.ca_file).absolute())
    url = parse_url(settings.store, RemoteOptions(**options))
    return replace(url, cache=base / settings.cache.path) if settings.cache.path is not None else url


def find_endpoint(url: StoreUrl) -> str | None:
    """The server that is asked, where it is not the provider's own; refused where it would be asked unencrypted."""
    variables = (os.environ.get(name) for name in _ENDPOINTS.get(url.scheme, ()))
    endpoint = url.options.endpoint or next((value for value in variables if value), None)
    if endpoint is None:
        return None
    parts = _split(endpoint, "the endpoint cannot be read", "write https://host:port")
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
        raise wrong_url("the endpoint is not an http:// or https:// URL of a server", "write https://host:port")
    if parts.scheme == "http" and not url.options.allow_http and not _is_loopback(parts.hostname):
        hint = "use https://, or write `remote: {allow_http: true}` into the config"
        raise wrong_url(f"requests to {printable(parts.hostname)} would not be encrypted", hint)
    return endpoint


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or re.fullmatch(r"127(\.[0-9]{1,3}){3}", host) is not None


def default_cache() -> Path:
    """Where this machine keeps what is near of remote stores, if nobody says otherwise."""
    named = os.environ.get("PRECOOK_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "precook"


def near_name(url: StoreUrl) -> str:
    """The folder of a store in the cache: known before the store is, and another one for each server."""
    told = f"{url}\0{find_endpoint(url) or ''}".encode()
    if url.scheme == "az":
        # A container is named within an account, which the URL does not tell.
        told += b"\0" + os.fsencode(os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", ""))
    return derived_digest(_CONTEXT, told).hex()[:32]


def courier_name(url: StoreUrl, cache: Path, version: str) -> str:
    """What tells one courier from another: for whom it asks and how, and where it keeps what it fetches."""
    names = (*_IDENTITY, *_ENDPOINTS.get(url.scheme, ()))
    facts = [str(cache), version, *(f"{name}={value}" for name, value in sorted(as_form(url.options).items()))]
    facts += [f"{name}={os.environ.get(name, '')}" for name in names]
    secrets = "\0".join(os.environ.get(name, "") for name in _SECRETS)
    facts.append(derived_digest(_SECRETS_CONTEXT, os.fsencode(secrets)).hex())
    return derived_digest(_CONTEXT, "\0".join(facts).encode("utf-8", "surrogateescape")).hex()[:32]


def as_form(options: RemoteOptions) -> dict[str, Any]:
    """Options as plain data."""
    return asdict(options)
