"""Secrets in texts: found by their shape, by the name beside them or by their value, and hidden in what is shown.

The one home of it. Errors and logs of defects hide by name and by shape (`without_secrets`); what Charter prints on
purpose has fields of its own that are called `..._key` or `..._token`, and is hidden by shape alone (`without_shapes`,
`HidingStream`); values that a process has read by reference are hidden as such (`without_values`). A text of a
`charter.yaml` that holds a secret is refused (`holds_secret`). Limit: a secret without a name, a shape or a known value
is a word like any other. Repetitions are bounded, so that a hostile text takes no more than a time for each letter.
"""

import base64
import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO
from urllib.parse import quote

HIDDEN = "(hidden)"
"""Stands where a secret was."""

_TOKEN = r"(?<!\bper_)(?<!_per_)token"
"""The word in a name; what is so much `per_token` is a number."""
_NAMES = rf"(?:api[_-]?key | [a-z0-9]_key | secret | password | passwd | passphrase | {_TOKEN})"
_OWN_WORDS = r"(?: is | must | has | holds | needs | cannot | there | what | takes | or | and )\b"
"""Words of Charter after such a name, which are no value of it."""
_NAMED = re.compile(
    rf"""(?ix)
    ( (?<![a-z0-9/]) [a-z0-9_.-]{{0,64}} {_NAMES} ["']? \s* [:=] \s* ["']? )
    (?! env: | file: | \$ | null\b | none\b | \(hidden\) )
    (?! {_OWN_WORDS} )
    [^\s"',;}}\])]* [^\s"',;}}\]):.]
    """
)
_BLOCK = re.compile(
    rf"""(?ix)
    ( {_NAMES} ["']? [ \t]* : [ \t]* [|>] [+-]? [0-9]? [+-]? [ \t]* \n (?: [ \t]* \n )* )
    (?: [ \t]+ [^\n]* (?: \n+ | \Z ) )+
    """
)
_OPTION = re.compile(
    rf"""(?ix)
    ( (?<![\w-]) --? [a-z0-9-]{{0,64}} (?: api-?key | access-key | secret | password | passphrase | token ) \s+ ["']? )
    (?! env: | file: | - | {_OWN_WORDS} )
    [^\s"',;]+
    """
)
_WIDE = re.compile(
    r"(?<![A-Za-z0-9])(?:sk-[A-Za-z0-9_-]{6,}|(?:hf|ghp|gho|ghs|ghu|ghr|glpat)[_-][A-Za-z0-9_-]{8,}"
    r"|A[KS]IA[0-9A-Z]{12,})"
)
"""Beginnings of keys, however short: in a message of an error a word too many may be hidden."""
_SHAPES = re.compile(
    r"""(?x)
    (?<![A-Za-z0-9])
    (?: sk-[\w-]{0,64}? (?=\w{10}) (?=[A-Za-z_]{0,200}[0-9]) (?=[0-9_]{0,200}[A-Za-z]) \w{10,} [\w-]*
      | (?:hf|ghp|gho|ghs|ghu|ghr)_[A-Za-z0-9]{16,} | github_pat_\w{20,} | glpat-[\w-]{16,}
      | (?:npm|r8|gsk)_[A-Za-z0-9]{30,} | pypi-[\w-]{30,} | (?:nvapi|xai)-[\w-]{20,} | dop_v1_[a-f0-9]{32,}
      | xox[abeprs]-[\w-]{10,} | xapp-[\w-]{20,} | SG\.[\w-]{16,100}\.[\w-]{16,}
      | A[KS]IA[0-9A-Z]{16} (?![0-9A-Za-z]) | AIza[\w-]{20,} | eyJ[\w-]{10,2000}\.[\w-]{10,4000}\.[\w-]+
      | hooks\.slack\.com/services/[\w/]+ | discord(?:app)?\.com/api/webhooks/[\w/-]+ )
    """
)
_WHOLE_VALUE = re.compile(
    rf"(?i)^(.*(?:key|{_TOKEN}|password|passwd|passphrase|secret|credentials?|pwd|authorization|webhook)[\"']?\s*[:=]\s*)"
    r"(?!env:|file:)\S.*$"
)
_AUTHORIZATION = re.compile(
    r"(?i)(\bauthorization[\"']?\s*[:=]\s*[\"']?(?:basic|token|digest|apikey|negotiate)\s+)[^\s\"',;]+"
)
_BEARER = re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{8,}")
_WITH_PASSWORD = re.compile(r"(://[^\s/:@\"'<>]{0,256}:)(?![0-9]{1,5}[/?#])[^\s\"'<>]{0,512}(?=@)")
"""A password may hold `/` and `@`: what counts is the last `@` of the word; digits before a `/` are a port."""
_USER_ALONE = re.compile(r"(?i)(\bhttps?://)[^\s/:@\"'<>]{1,512}(?=@)")
"""Tokens stand where a web address has its user; users of databases and of ssh are no secret."""
_SIGNED = re.compile(
    r"(?i)([?&;](?:sig|signature|x-(?:amz|goog)-(?:signature|credential|security-token)|(?:access[_-]?|auth[_-]?)?token"
    r"|api[_-]?key|key|secret|password|awsaccesskeyid)=)(?!\(hidden\))[^&\s\"'<>]+"
)
_ACCOUNT_KEY = re.compile(r"(?i)(\b(?:AccountKey|SharedAccessSignature)=)[^;\s\"']+")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)")
_SECRET_NAME = re.compile(
    r"(?i)(?:^|[_-])(?:key|token|password|passwd|passphrase|secret|credentials?|pwd)(?:$|_id$|_b64$)"
    r"|(?:apikey|password|passwd|passphrase|secret|token)$"
)


def without_secrets(text: str) -> str:
    """Return a text of an error with its secrets hidden; a reference to one stays readable.

    Known are keys, tokens and passwords by their name, by their shape, in addresses, headers and options.

    >>> without_secrets("--set serving.judge.api_key=abc123: no; api_key: env:JUDGE_KEY; key: sk-live-123456")
    '--set serving.judge.api_key=(hidden): no; api_key: env:JUDGE_KEY; key: (hidden)'
    >>> without_secrets("postgresql://me:se/c@ret@host/db says 'Bearer abcdefgh123', https://Winter26@host no")
    "postgresql://me:(hidden)@host/db says 'Bearer (hidden)', https://(hidden)@host no"
    >>> without_secrets("mixture.experts_per_token: more than the 4 experts; found 8; per_user_token: abc")
    'mixture.experts_per_token: more than the 4 experts; found 8; per_user_token: (hidden)'
    >>> without_secrets("Authorization: Basic bWU6c2VjcmV0; --api-key Winter26; https://s/?a=1&sig=Winter26")
    'Authorization: Basic (hidden); --api-key (hidden); https://s/?a=1&sig=(hidden)'
    """
    text = _BLOCK.sub(rf"\1  {HIDDEN}\n", without_shapes(text))
    text = _OPTION.sub(rf"\1{HIDDEN}", _WIDE.sub(HIDDEN, text))
    return _NAMED.sub(rf"\1{HIDDEN}", text)


def without_shapes(text: str) -> str:
    """Return a text without what is a secret by its shape or its place: in an address, a header, a signed query.

    >>> without_shapes('{"usd_per_token": 0.5, "owner": "ghr_AAAAbbbb1111CCCC2222"}')
    '{"usd_per_token": 0.5, "owner": "(hidden)"}'
    >>> without_shapes("https://host:8000/v1@2 sk-small-model-7b")
    'https://host:8000/v1@2 sk-small-model-7b'
    """
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    for place in (_WITH_PASSWORD, _AUTHORIZATION, _BEARER, _SIGNED, _ACCOUNT_KEY, _USER_ALONE):
        text = place.sub(rf"\1{HIDDEN}", text)
    return _SHAPES.sub(HIDDEN, text)


def without_value(setting: str) -> str:
    """Hide all that stands after a name that ends like a secret's, in what a user has written: a line, an option."""
    return _WHOLE_VALUE.sub(rf"\1{HIDDEN}", setting)


def without_values(text: str, values: Iterable[str]) -> str:
    """Return a text without these values, as they are, percent-encoded, and in base64.

    >>> without_values("got abc/12345 and YWJjLzEyMzQ1, a%2Fc or abc%2F12345", ["abc/12345"])
    'got (hidden) and (hidden), a%2Fc or (hidden)'
    """
    for value in sorted(values, key=len, reverse=True):
        for spelling in _spellings(value):
            text = text.replace(spelling, HIDDEN)
    return text


def _spellings(value: str) -> tuple[str, ...]:
    encoded = value.encode()
    coded = (base64.b64encode(encoded), base64.urlsafe_b64encode(encoded))
    return tuple(dict.fromkeys((value, quote(value, safe=""), *(item.decode().rstrip("=") for item in coded))))


def holds_secret(text: str) -> bool:
    """Return True if a text surely holds a secret; what merely begins like one does not.

    >>> holds_secret("sk-proj-AAAAbbbb1111"), holds_secret("s3://bucket/path"), holds_secret("sk-learn")
    (True, False, False)
    """
    return without_shapes(text) != text


_PLAIN_NAME = re.compile(
    r"""(?x)
    (?: NCCL | RCCL | GLOO | UCX | FI | OMP | MKL | OPENBLAS | CUDA | CUBLAS | NVIDIA | HIP | HSA | ROCR | XLA | LIBTPU
      | TORCH(?:INDUCTOR|ELASTIC|DYNAMO)? | PYTORCH | TRITON | TOKENIZERS | PYTHON | LD | LC | MALLOC | VLLM | HF_HUB
      | SLURM )
    _\w+
    | PYTHON[A-Z]+ | PATH | LANG | TZ | TMPDIR | HOME | HF_HOME | HF_DATASETS_CACHE | TRANSFORMERS_(?:CACHE|OFFLINE)
    """
)


def is_plain_variable(name: str, value: str) -> bool:
    """Return True if a variable of a job may be shown: a known one of libraries, without a secret by name or by shape.

    >>> [is_plain_variable(*pair) for pair in (("NCCL_DEBUG", "WARN"), ("PIN", "1234"), ("VLLM_API_KEY", "x"))]
    [True, False, False]
    """
    return _PLAIN_NAME.fullmatch(name) is not None and not is_secret_name(name) and not holds_secret(value)


_VARIABLES = re.compile(r"(?s)([\w.-]*\benvironment(?:\.(\w+))?)=(.*)")


def without_variable(setting: str) -> str:
    """Hide the value of a job's variable in a setting like those of `--set`, where it may not be shown.

    >>> [without_variable(f"launch.environment.{pair}") for pair in ("PIN=1234", "NCCL_DEBUG=WARN")]
    ['launch.environment.PIN=(hidden)', 'launch.environment.NCCL_DEBUG=WARN']
    >>> without_variable("launch.environment={PIN: 1234}"), without_variable("name=environment=x")
    ('launch.environment=(hidden)', 'name=environment=x')
    """
    match = _VARIABLES.fullmatch(setting)
    if match is None or (match[2] and is_plain_variable(match[2], match[3])):
        return setting
    return f"{match[1]}={HIDDEN}"


def is_secret_name(name: str) -> bool:
    """Return True if a variable is called as those are that hold secrets.

    >>> [is_secret_name(name) for name in ("HF_TOKEN", "AWS_ACCESS_KEY_ID", "TOKENIZERS_PARALLELISM", "KEYBOARD")]
    [True, True, False, False]
    """
    return _SECRET_NAME.search(name) is not None


class HidingStream:
    """A text stream that hides secrets by their shape in whatever is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write the text without its secrets; the length is that of what was given."""
        self.stream.write(without_shapes(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write every line without its secrets."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def show(text: str) -> None:
    """Print a text with the secret in it that its reader asked for: the link by which to sign in to a dashboard."""
    stream = sys.stdout
    print(text, file=stream.stream if isinstance(stream, HidingStream) else stream, flush=True)


def hide_output() -> None:
    """Let standard output and standard error of this process hide secrets, once."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, HidingStream):
            setattr(sys, name, HidingStream(stream))
