"""vcrpy playing back one recorded HTTP call, body matcher on."""

import json
import tempfile
from pathlib import Path

import httpx
import vcr

BODY = json.dumps({"messages": [{"role": "user", "content": "what a person asks " * 30}]})
ANSWER = json.dumps({"hits": [{"title": "x" * 40, "url": "y" * 60, "text": "z" * 200} for _ in range(3)]})
CASSETTE = {
    "version": 1,
    "interactions": [
        {
            "request": {"body": BODY, "headers": {}, "method": "POST", "uri": "http://model.test/v1/chat"},
            "response": {
                "status": {"code": 200, "message": "OK"},
                "headers": {"content-type": ["application/json"]},
                "body": {"string": ANSWER},
            },
        }
    ],
}


def playback():
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "cassette.json"
    path.write_text(json.dumps(CASSETTE))
    recorder = vcr.VCR(record_mode="none", serializer="json", match_on=("method", "uri", "body"))
    with recorder.use_cassette(str(path), allow_playback_repeats=True), httpx.Client() as client:

        def once():
            assert client.post("http://model.test/v1/chat", content=BODY).status_code == 200

        yield once
    folder.cleanup()
