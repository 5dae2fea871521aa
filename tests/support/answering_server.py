"""A small server for tests whose answers are the same each time, and wrong on order.

    python -m answering_server PORT

It knows `/v1/completions` (with `echo`), `/v1/chat/completions` and SGLang's `/generate`, all with log-probabilities. A
token is a word that follows from the prompt and its place. A prompt that ends with `A plus B?\\nAnswer:` gets the sum.

Environment: ANSWERS is a comma-separated list of

    diverge:K:SHARE   from token K on, another answer to this share of prompts
    flaky:SHARE       the same, every second time that this share of prompts is asked
    shift:NATS        log-probabilities lie this far from where they were
    wrong:SHARE       this share of sums is wrong
    fault:KIND:SHARE  nan null empty loop garbage abort 500 of this share of prompts
    500               of every twentieth request
    uniform           one answer to all prompts
    refuse_logprobs   400 to whoever asks for them
    die               the process ends at the first request for more than one token
    hang              such requests are not answered
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ORDERS = [order.split(":") for order in os.environ.get("ANSWERS", "").split(",") if order]
TEXT = """after again air also animal answer any ask back because before big boy but came change come could country day
different do does earth end even every eye far father few find first follow form found give good great hand hard head
help here high home house how just kind know land large last learn leave left letter light line little"""
WORDS = TEXT.split()
REQUESTS: list[str] = []
ASKED: collections.Counter[str] = collections.Counter()
KEYS: set[str] = set()


def number(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest(), "big")


def order(name: str) -> list[str] | None:
    return next((each for each in ORDERS if each[0] == name), None)


def chosen(share: str, *parts: object) -> bool:
    return number("chosen", *parts) % 1000 < 1000 * float(share)


def salt(prompt: str, place: int) -> int:
    if (found := order("diverge")) and place >= int(found[1]) and chosen(found[2], prompt):
        return 1
    if (found := order("flaky")) and place >= 3 and chosen(found[1], prompt) and ASKED[prompt] % 2 == 0:
        return 2
    return 0


def token(prompt: str, place: int) -> tuple[str, float]:
    seed = number(prompt, place, salt(prompt, place))
    shift = float(found[1]) if (found := order("shift")) else 0.0
    return WORDS[seed % len(WORDS)], -0.1 - (seed >> 16) % 1000 / 500 - shift


def answer(prompt: str, count: int) -> tuple[list[tuple[str, float | None]], str]:
    """Words with their log-probabilities, and the finish reason."""
    fault = found[1] if (found := order("fault")) and chosen(found[2], prompt) else ""
    if asked := re.search(r"(\d+) plus (\d+)\?\nAnswer:$", prompt):
        wrong = (found := order("wrong")) and chosen(found[1], prompt)
        total = int(asked[1]) + int(asked[2]) + (7 if wrong else 0)
        return [(word, -0.1) for word in f"So it is {total}.\n#### {total}".split(" ")], "stop"
    words: list[tuple[str, float | None]] = [token("" if order("uniform") else prompt, place) for place in range(count)]
    if fault == "nan":
        words = [("nan", logprob) for _, logprob in words]
    elif fault == "null":
        words = [(word, None if place == 3 else logprob) for place, (word, logprob) in enumerate(words)]
    elif fault == "empty":
        words = []
    elif fault == "loop":
        words = [(WORDS[place % 4 if place > 4 else place], -0.1) for place in range(count)]
    elif fault == "garbage":
        words = [("\ufffd\x00", logprob) for _, logprob in words]
    return words, "abort" if fault == "abort" else "length"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: with it each answer would wait 40 ms

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 (the name in the base class)
        pass

    def reply(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": "small", "object": "model"}]})
        elif self.path == "/get_model_info" or self.path == "/model_info":
            self.reply(200, {"model_path": "small", "is_generation": True})
        else:
            self.reply(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        REQUESTS.append(self.path)
        if (wanted := os.environ.get("ANSWERS_KEY")) and self.headers.get("Authorization") != f"Bearer {wanted}":
            self.reply(401, {"error": "no key"})
        elif self.path == "/flush_cache":
            self.reply(200, {})
        elif order("refuse_logprobs") and (body.get("logprobs") or body.get("return_logprob")):
            self.reply(400, {"error": "logprobs are not supported"})
        elif order("500") and len(REQUESTS) % 20 == 0:
            self.reply(500, {"error": "out of memory"})
        elif self.path == "/generate":
            self.generate(body)
        else:
            self.complete(body)

    def words_of(self, prompt: str, count: int) -> tuple[list[tuple[str, float | None]], str]:
        if order("die") and count > 1:
            os._exit(3)
        if order("hang") and count > 1:
            time.sleep(3600)
        ASKED[prompt] += count > 1
        return answer(prompt, count)

    def weighed(self, whole: str) -> list[list[Any]]:
        """A text token by token, as this server weighs it."""
        words = whole.split(" ")
        shift = float(found[1]) if (found := order("shift")) else 0.0
        return [[-0.2 - number(words[:place]) % 100 / 100 - shift, word] for place, word in enumerate(words)]

    def complete(self, body: dict[str, Any]) -> None:
        chat = "chat" in self.path
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        words, reason = self.words_of(prompt, body["max_tokens"])
        if (found := order("fault")) and found[1] == "500" and chosen(found[2], prompt):
            self.reply(500, {"error": "out of memory"})
            return
        text = " " + " ".join(word for word, _ in words) if words else ""
        usage = {"prompt_tokens": len(prompt.split(" ")), "completion_tokens": len(words)}
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
        if chat:
            choice["message"] = {"role": "assistant", "content": text}
            if body.get("logprobs"):
                tops = [
                    [{"token": word, "logprob": each or -1.0}, {"token": "other", "logprob": -9.0}]
                    for word, each in words
                ]
                choice["logprobs"] = {
                    "content": [
                        {"token": word, "logprob": each, "top_logprobs": top}
                        for (word, each), top in zip(words, tops, strict=True)
                    ]
                }
        else:
            choice["text"] = prompt + text if body.get("echo") else text
            if body.get("logprobs"):
                before = self.weighed(prompt) if body.get("echo") else []
                choice["logprobs"] = {
                    "tokens": [word for _, word in before] + [word for word, _ in words],
                    "token_logprobs": [each for each, _ in before] + [each for _, each in words],
                    "top_logprobs": [None] * len(before)
                    + [{word: each or -1.0, "other": -9.0} for word, each in words],
                }
        self.reply(200, {"choices": [choice], "usage": usage})

    def generate(self, body: dict[str, Any]) -> None:
        prompt = body["text"]
        words, reason = self.words_of(prompt, body["sampling_params"].get("max_new_tokens", 16))
        meta: dict[str, Any] = {
            "id": "x",
            "finish_reason": {"type": reason},
            "prompt_tokens": len(prompt.split(" ")),
            "completion_tokens": len(words),
        }
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = [[each, number(word) % 5000, None] for word, each in words]
            meta["output_top_logprobs"] = [[[each, number(word) % 5000, None]] for word, each in words]
            start = body.get("logprob_start_len", -1)
            weighed = self.weighed(prompt)[start:] if start >= 0 else []
            meta["input_token_logprobs"] = [[each, number(word) % 5000, None] for each, word in weighed]
        self.reply(200, {"text": " " + " ".join(word for word, _ in words) if words else "", "meta_info": meta})


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
