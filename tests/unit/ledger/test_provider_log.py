"""A provider's log: what is read, and what is refused with the line named."""

from decimal import Decimal

import pytest

from charter.errors import DataError, UsageError
from charter.ledger.reconcile import BilledRow, read_provider_log


def read(tmp_path, text, *, encoding="utf-8"):
    path = tmp_path / "log"
    path.write_bytes(text.encode(encoding))
    return read_provider_log(path)


def row(request_id="a", micro_usd=None, prompt=None, cached=None, completion=None):
    money = None if micro_usd is None else Decimal(micro_usd)
    return BilledRow(
        request_id=request_id, micro_usd=money, prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("request_id,cost_usd\na,0.00000125\nb,$2\n", [row("a", "1.25"), row("b", "2000000")]),
        ("Request_ID,input_tokens,output_tokens\r\na,10,5\r\n", [row(prompt=10, completion=5)]),
        ('{"x_request_id": "a", "micro_usd": 7, "cached_tokens": 3}\n\n', [row(micro_usd=7, cached=3)]),
        ('{"request_id": "a", "cost": 1e-7}\n', [row(micro_usd="0.1")]),
        ('{"request_id": "a", "cost": 1e-7, "note": "one\u2028line"}\n', [row(micro_usd="0.1")]),
        ('request_id,note,usd\na,"one\u2028line\nand two",1e-6\n', [row(micro_usd=1)]),
        ("call_id,request_id,usd\na,,1e-6\nb,a,1e-6\n", [row(micro_usd=1)] * 2),
        ("request_id,usd\n", []),
        ("", []),
    ],
)
def test_csv_and_json_lines_in_several_words(tmp_path, text, expected):
    assert list(read(tmp_path, text)) == expected


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    assert read(tmp_path, "request_id,usd\na,1\n", encoding="utf-8-sig")[0].request_id == "a"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,cost_usd\na,1\n", "2: has no request id"),
        ("request_id,cost_usd\na,1\nb,\n", "3: has neither a cost"),
        ("request_id,cost_usd\na,-1\n", "amount of money that a call can cost"),
        ("request_id,cost_usd\na,NaN\n", "amount of money that a call can cost"),
        ("request_id,cost_usd\na,1e999999999\n", "amount of money"),
        ("request_id,cost_usd\na,one\n", "'one' is no amount"),
        ("request_id,input_tokens,output_tokens\na,1.5,1\n", "no number of tokens"),
        ('{"request_id": "a", "usd": NaN}\n', "1: is not JSON"),
        ('{"request_id": "a", "usd": 1}\n[1]\n', "2: is not a JSON object"),
        ('{"request_id": "a", "usd": 1\n', "1: is not JSON"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(tmp_path, text, said):
    with pytest.raises(DataError, match=said):
        read(tmp_path, text)


def test_a_file_that_is_missing_or_no_text_is_said(tmp_path):
    with pytest.raises(UsageError, match="there is no file"):
        read_provider_log(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8"):
        read_provider_log(tmp_path / "bytes")
