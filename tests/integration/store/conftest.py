import boto3
import pytest

from charter.artifacts.store.s3 import S3Place


@pytest.fixture(scope="session")
def moto_address():
    """A server that speaks S3, in this process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(moto_address, monkeypatch):
    """An empty bucket, found by the environment as every S3 client does; a client to look into it besides."""
    for name, value in {
        "AWS_ENDPOINT_URL": moto_address,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=moto_address)
    client.create_bucket(Bucket="results")
    yield client
    for upload in client.list_multipart_uploads(Bucket="results").get("Uploads", []):
        client.abort_multipart_upload(Bucket="results", Key=upload["Key"], UploadId=upload["UploadId"])
    for item in client.list_objects_v2(Bucket="results").get("Contents", []):
        client.delete_object(Bucket="results", Key=item["Key"])
    client.delete_bucket(Bucket="results")
    client.close()


@pytest.fixture
def place(s3):
    return S3Place("s3://results/charter")
