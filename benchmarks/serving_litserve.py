"""LitServe, which `serving.py` compares polytask's server with: the same model, batches of requests, one worker.

    python benchmarks/serving_litserve.py litserve RUN TASK PORT

A batch has at most 64 inputs, which wait for each other for up to 2 ms.
"""

import sys
from typing import Any

import litserve
from serving_plain import answer

import polytask


class Api(litserve.LitAPI):  # type: ignore[misc]
    """Predicts one task for batches of texts."""

    def __init__(self, run: str, task: str) -> None:
        super().__init__(max_batch_size=64, batch_timeout=0.002)
        self.run, self.task = run, task

    def setup(self, device: str) -> None:
        self.model = polytask.load(self.run)

    def decode_request(self, request: dict[str, str]) -> str:
        return request["text"]

    def batch(self, inputs: list[str]) -> list[str]:
        return inputs

    def predict(self, texts: list[str]) -> list[polytask.Prediction]:
        return self.model.predict(self.task, texts)

    def unbatch(self, output: list[polytask.Prediction]) -> list[polytask.Prediction]:
        return output

    def encode_response(self, output: polytask.Prediction) -> dict[str, Any]:
        return answer(output)


if __name__ == "__main__":
    _, folder, task_name, port_number = sys.argv[1:]
    server = litserve.LitServer(Api(folder, task_name), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(port_number), log_level="warning", generate_client_file=False)
