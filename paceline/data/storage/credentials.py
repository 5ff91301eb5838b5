"""How a bucket or web server is reached: credentials, endpoint, patience, and errors in plain words.

Settings are those that the vendors' own tools read already: their environment variables, and AWS's profile files.
Needs obstore, which has the protocols, signatures and retries.
"""

from __future__ import annotations

import configparser
import errno
import math
import os
import re
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from paceline._utils.errors import PacelineError
from paceline._utils.safe_read import read_plain
from paceline.data.storage.store import StoreError

# How long one read is retried before it fails. Below slots.FAIL_SECONDS, so that the store's own error is the one that is
# reported; and below the five minutes for which a request's signature holds.
PATIENCE_SECONDS = 180.0
MAX_PATIENCE_SECONDS = 280.0
# One try, from connecting to the last byte. Blocks are of some MiB.
TRY_SECONDS = 30.0
CONNECT_SECONDS = 5.0
# Machines in AWS and in Google's cloud find their role's credentials here.
METADATA_SERVICE = ("169.254.169.254", 80)
METADATA_SECONDS = 1.0
# All the authorities that browsers trust are a quarter of this.
MAX_BUNDLE_BYTES = 1 << 20

NO_AWS = (
    "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or AWS_SKIP_SIGNATURE=true for a "
    "public bucket"
)
NO_GOOGLE = (
    "no credentials: set GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth application-default login, or set "
    "GOOGLE_SKIP_SIGNATURE=true for a public bucket"
)


def patience_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """`$PACELINE_STORE_PATIENCE` seconds, or PATIENCE_SECONDS. Raises PacelineError where it is no number of 0 to 280."""
    explicit = environment.get("PACELINE_STORE_PATIENCE")
    if not explicit:
        return PATIENCE_SECONDS
    try:
        seconds = float(explicit)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MAX_PATIENCE_SECONDS:
        raise PacelineError(f"PACELINE_STORE_PATIENCE={explicit}: must be from 0 to {MAX_PATIENCE_SECONDS:g} seconds.")
    return seconds


def open_bucket(scheme: str, location: str, patience: float) -> Any:
    """obstore's store for a bucket, or for all files of a web server.

    scheme    "s3", "gs", "az", "http" or "https"
    location  the bucket, the container, or the server with its port
    patience  seconds until a read that is retried fails
    Raises StoreError where credentials or settings are missing or cannot be.
    """
    import obstore.store as made

    backoff = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=10), "base": 2}
    client: dict[str, Any] = {
        "timeout": timedelta(seconds=max(1.0, min(TRY_SECONDS, patience))),
        "connect_timeout": timedelta(seconds=max(1.0, min(CONNECT_SECONDS, patience))),
    }
    common: dict[str, Any] = {
        "client_options": client,
        # The time decides, not the number of retries.
        "retry_config": {
            "max_retries": 1_000 if patience else 0,
            "retry_timeout": timedelta(seconds=patience),
            "backoff": backoff,
        },
    }

    makers: dict[str, Any] = {"s3": made.S3Store, "gs": made.GCSStore, "az": made.AzureStore}
    result: dict[str, Any] = {}
    endpoint: str | None = f"{scheme}://"
    try:
        if scheme == "s3":
            result = aws_settings(os.environ)
            endpoint = result.get("endpoint")
            if bundle := os.environ.get("AWS_CA_BUNDLE"):
                try:
                    client["root_certificate"] = read_plain(bundle, MAX_BUNDLE_BYTES)
                except OSError as error:
                    raise StoreError(errno.EINVAL, f"AWS_CA_BUNDLE={bundle}: cannot be read ({error.strerror})") from None
        elif scheme == "gs":
            if not _google_credentials(os.environ):
                raise StoreError(errno.EACCES, NO_GOOGLE)
            endpoint = os.environ.get("GOOGLE_BASE_URL")
        elif scheme == "az":
            endpoint = os.environ.get("AZURE_STORAGE_ENDPOINT")
        # Without TLS only where the user's own endpoint is so.
        client["allow_http"] = (endpoint or "").startswith("http://")
        if scheme in makers:
            return makers[scheme](location, **result, **common)
        return made.HTTPStore(f"{scheme}://{location}", **common)
    except StoreError:
        raise
    except Exception as error:  # obstore has its own kinds, which begin at Exception
        raise StoreError(errno.EINVAL, f"cannot be set up: {str(error).splitlines()[0]}") from None


def aws_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Arguments for S3Store beside the AWS_* variables that it reads itself.

    Credentials of a profile (AWS_PROFILE, else "default") in ~/.aws are used where the environment has none. Keys that stand
    there are read; a profile that must log in first, or take on a role, is boto3's affair, where that is installed.
    Raises StoreError where there are no credentials, or a profile cannot be read.
    """
    profile = _profile(environment)
    result: dict[str, Any] = {}

    def named(*names: str) -> str:
        """The first of the variables AWS_... that is set."""
        return next(filter(None, (environment.get(f"AWS_{name}") for name in names)), "")

    if endpoint := named("ENDPOINT_URL_S3", "ENDPOINT_URL") or profile.get("endpoint_url"):
        result["endpoint"] = endpoint
    if "region" in profile and not named("REGION", "DEFAULT_REGION"):
        result["region"] = profile["region"]
    if _true(environment.get("AWS_SKIP_SIGNATURE")) or _true(environment.get("AWS_NO_SIGN_REQUEST")):
        result["skip_signature"] = True
    elif environment.get("AWS_ACCESS_KEY_ID"):
        pass  # obstore reads them
    elif "aws_access_key_id" in profile:
        result["access_key_id"] = profile["aws_access_key_id"]
        result["secret_access_key"] = profile.get("aws_secret_access_key", "")
        if "aws_session_token" in profile:
            result["session_token"] = profile["aws_session_token"]
    elif "role_arn" in profile or "credential_process" in profile or any(key.startswith("sso_") for key in profile):
        result["credential_provider"] = _through_boto3()
    elif not (
        named("WEB_IDENTITY_TOKEN_FILE", "CONTAINER_CREDENTIALS_RELATIVE_URI", "CONTAINER_CREDENTIALS_FULL_URI")
        or (not _true(environment.get("AWS_EC2_METADATA_DISABLED")) and _metadata_answers())
    ):
        raise StoreError(errno.EACCES, NO_AWS)
    return result


def _profile(environment: Mapping[str, str]) -> dict[str, str]:
    """The keys of the chosen profile in AWS's two files; of a key in both, that of the credentials file."""
    name = environment.get("AWS_PROFILE") or "default"
    keys: dict[str, str] = {}
    known = False
    for variable, usual, section in (
        ("AWS_CONFIG_FILE", "~/.aws/config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", name),
    ):
        path = os.path.expanduser(environment.get(variable) or usual)
        parser = configparser.ConfigParser(interpolation=None, default_section="")
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise StoreError(errno.EINVAL, f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
        if parser.has_section(section):
            known = True
            keys.update(parser.items(section))
    if environment.get("AWS_PROFILE") and not known:
        raise StoreError(errno.EACCES, f"AWS_PROFILE={name}: profile not found in ~/.aws")
    return keys


def _through_boto3() -> Any:
    try:
        import boto3  # pyright: ignore[reportMissingImports]
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise StoreError(
            errno.EACCES,
            (
                "the AWS profile uses a login or assumes a role, which requires boto3. Run  pip install boto3  or set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ),
        ) from None
    return Boto3CredentialProvider(boto3.Session())


def _google_credentials(environment: Mapping[str, str]) -> bool:
    named = ["SERVICE_ACCOUNT", "SERVICE_ACCOUNT_PATH", "SERVICE_ACCOUNT_KEY", "APPLICATION_CREDENTIALS", "BEARER_TOKEN"]
    usual = os.path.expanduser("~/.config/gcloud/application_default_credentials.json")
    return (
        any(environment.get(f"GOOGLE_{name}") for name in named)
        or _true(environment.get("GOOGLE_SKIP_SIGNATURE"))
        or os.path.exists(usual)
        or _metadata_answers()
    )


def _metadata_answers() -> bool:
    """Whether this machine is in a cloud. Tried once, for a second: the library would try for minutes."""
    try:
        socket.create_connection(METADATA_SERVICE, METADATA_SECONDS).close()
    except OSError:
        return False
    return True


def _true(value: str | None) -> bool:
    return (value or "").strip().lower() in ("1", "true", "yes", "on")


# obstore's error of a failed request, in one line with the next step.
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_RETRIES = re.compile(r"after (\d+) retries")
# In obstore's error of a connection that failed -> a plain word; the first one that fits counts.
_CAUSES = (
    ("Connection refused", "connection refused"),
    ("failed to lookup address", "the host name was not found"),
    ("dns error", "the host name was not found"),
    ("TimedOut", "timed out"),
    ("InvalidCertificate", "its certificate is not trusted; for a private authority, set AWS_CA_BUNDLE or SSL_CERT_FILE"),
    ("Network is unreachable", "the network is not reachable"),
    ("error sending request", "the connection was lost"),
    ("body error", "the connection was lost"),
)
# Both refuse in this way whoever shows no credentials, or wrong ones.
_REFUSALS = {
    401: "access denied (401): the credentials are wrong or have expired",
    403: "no permission (403): the credentials do not allow you to {does} it, or the bucket is not yours",
}


def explain_store_error(error: Exception, name: bytes, seconds: float, *, does: str = "read") -> OSError:
    """The OSError to raise for a request about the file `name` that failed after `seconds`; does: "read", "write" or "delete"."""
    text = str(error)
    result = _STATUS.search(text)
    status = int(result[1]) if result else 0
    code = result[1] if (result := _CODE.search(text)) else ""
    no_bucket = code == "NoSuchBucket"
    if "169.254.169.254" in text:
        return StoreError(errno.EACCES, "no credentials: this machine has no role with credentials (see AWS_* or GOOGLE_*)")
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "bucket not found" if no_bucket else "object not found (404)", name)
    if status in _REFUSALS:
        detail = f", {code}" if code else ""
        return StoreError(errno.EACCES, _REFUSALS[status].format(does=does) + detail, name)
    if "without LOCATION" in text or code in ("PermanentRedirect", "AuthorizationHeaderMalformed"):
        return StoreError(errno.EINVAL, "the bucket is in another region; set AWS_REGION to this region", name)
    if "NotPartial" in text or "RangeNotSupported" in text:
        return StoreError(errno.EINVAL, "the server sends only complete files and does not support byte ranges", name)
    first_line = text.splitlines()[0] if text else "no reason given"
    if isinstance(error, ValueError) or "InvalidPath" in type(error).__name__:
        return OSError(errno.EINVAL, f"invalid name ({first_line})", name)
    retried = _RETRIES.search(text)
    tries = f"{int(retried[1]) + 1} tries in {seconds:.0f} s" if retried else f"tried for {seconds:.0f} s"
    if status:
        detail = f" {code}" if code else ""
        if status >= 500 or status in (408, 429):
            return StoreError(errno.EIO, f"the server failed ({status}{detail}): {tries}", name)
        return StoreError(
            errno.EIO, "bucket not found" if no_bucket else f"the server responded with {status}{detail}", name
        )
    for words, cause in _CAUSES:
        if words in text:
            return StoreError(errno.EIO, f"the server does not respond ({cause}): {tries}", name)
    return OSError(errno.EIO, first_line, name)
