"""What is told of the environment: values, or for what looks like a secret a digest. Pure.

A digest is keyed anew for each look: it tells whether two processes have the same value, and can be
compared with nothing else. It is never shown.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

_NAMES = re.compile(
    r"SECRET|TOKEN|PASS(WD|WORD|PHRASE|$)|PWD$|CREDENTIAL|(^|_)(KEY|KEYS|AUTH|COOKIE|SESSION|DSN|SALT|PAT)"
    r"(_|$)|APIKEY|PRIVATE|SIGNATURE|CONNECTION_STRING|WEBHOOK",
    re.IGNORECASE,
)
_PLAIN = {"PWD", "OLDPWD"}
_VALUES = re.compile(
    r"://[^/\s]*@"  # user and password, or a token, in an address
    r"|-----BEGIN|\beyJ[\w-]{10,}|\b(gh[pousr]|github_pat|glpat|hf|sk|xox[abp]|AKIA)[_-]?\w{12,}"
    r"|[?&](sig|token|key|signature)=",
    re.IGNORECASE,
)
_DIGEST = "digest:"
_LONGEST = 4000  # characters of a value that are told; of a longer one the digest


def is_secret(name: str, value: str) -> bool:
    """Whether a variable looks like one whose value nobody else should see.

    >>> (
    ...     is_secret("WANDB_API_KEY", "x"),
    ...     is_secret("PROXY", "http://me:pw@host"),
    ...     is_secret("PWD", "/"),
    ... )
    (True, True, False)
    """
    return (name not in _PLAIN and bool(_NAMES.search(name))) or bool(_VALUES.search(value))


def told(environment: Mapping[str, str], salt: bytes) -> dict[str, str]:
    """The environment as other processes may know it; `salt`, the same on all, keys the digests.

    >>> told({"A": "1"}, b"salt"), told({"MY_TOKEN": "1"}, b"salt")["MY_TOKEN"][:10]
    ({'A': '1'}, 'digest:45c')
    """
    return {
        name: value
        if len(value) <= _LONGEST and not is_secret(name, value)
        else _DIGEST + hashlib.blake2b(value.encode(errors="replace"), key=salt).hexdigest()[:24]
        for name, value in environment.items()
    }


def shown(value: str | None) -> str:
    """A value that was told, as it may be shown; `None` where a process has no such variable."""
    if value is None:
        return "not set"
    return "(not shown)" if value.startswith(_DIGEST) else repr(value)
