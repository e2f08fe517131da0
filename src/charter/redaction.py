"""Hide secrets in text that is printed: values of keys that name one, and what has the shape of one."""

import re

HIDDEN = "(hidden)"
_NAMED = re.compile(
    r"""(?ix)
    ( (?<![a-z0-9]) [a-z0-9_.-]* (?: api[_-]?key | access[_-]?key | secret (?:[_-]?key)? | password | passwd | token )
      ["']? \s* [:=] \s* ["']? )
    (?! env: | file: | \$ | null\b | none\b | \(hidden\) )
    [^\s"',;}\])]* [^\s"',;}\]):.]
    """
)
_SHAPES = re.compile(
    r"""(?x)
    (?<![A-Za-z0-9])
    (?: sk-[A-Za-z0-9_-]{6,} | (?:hf|ghp|gho|ghs|ghu|glpat)[_-][A-Za-z0-9_-]{8,} | github_pat_\w{10,}
      | xox[abprs]-[\w-]{8,} | AKIA[0-9A-Z]{12,} | AIza[\w-]{20,} | eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+ )
    """
)
_BEARER = re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{8,}")
_ADDRESS = re.compile(r"(://[^\s/:@]*:)[^\s/@]+(?=@)")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)")


def without_secrets(text: str) -> str:
    """Return a text with its secrets hidden; where a key is found is said, and a reference to one stays readable.

    Known are keys, tokens and passwords by their name, keys of OpenAI, Anthropic, Hugging Face, GitHub, GitLab, Slack,
    AWS and Google by their shape, signed tokens, private keys, and passwords in addresses. Limit: a secret without a
    name and without such a shape is a word like any other.

    >>> without_secrets("--set serving.judge.api_key=abc123: no; api_key: env:JUDGE_KEY; key: sk-live-123456")
    '--set serving.judge.api_key=(hidden): no; api_key: env:JUDGE_KEY; key: (hidden)'
    >>> without_secrets("postgresql://me:secret@host/db says 'Bearer abcdefgh123'")
    "postgresql://me:(hidden)@host/db says 'Bearer (hidden)'"
    """
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    text = _ADDRESS.sub(rf"\1{HIDDEN}", text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    return _NAMED.sub(rf"\1{HIDDEN}", _SHAPES.sub(HIDDEN, text))
