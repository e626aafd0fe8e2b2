"""A plain FastAPI endpoint, which `serving.py` compares polytask's server with: the same model, a few lines of code.

    python benchmarks/serving_plain.py plain|plain-async RUN TASK PORT

- plain: FastAPI's usual form, a function without `async`: a pool of threads, one text at a time.
- plain-async: the same with `async def`: one text after another.
"""

import sys
from pathlib import Path
from typing import Any

import fastapi
import uvicorn

import polytask


def answer(prediction: polytask.Prediction) -> dict[str, Any]:
    """What each server answers for one text."""
    return {"label": prediction.label, "probabilities": prediction.probabilities}


def serve_plain(run: Path, task: str, port: int, is_async: bool) -> None:
    app, model = fastapi.FastAPI(), polytask.load(run)

    if is_async:

        @app.post("/predict")
        async def predict(text: str = fastapi.Body(embed=True)) -> dict[str, Any]:
            return answer(model.predict(task, text)[0])
    else:

        @app.post("/predict")
        def predict_in_thread(text: str = fastapi.Body(embed=True)) -> dict[str, Any]:
            return answer(model.predict(task, text)[0])

    uvicorn.run(app, port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    name, folder, task_name, port_number = sys.argv[1:]
    serve_plain(Path(folder), task_name, int(port_number), name == "plain-async")
