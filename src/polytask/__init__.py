"""polytask: one encoder, many text tasks.

The public names are imported when they are first used, so that `import polytask` and `polytask --help` take no time:
PyTorch alone needs seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polytask.version import __version__

if TYPE_CHECKING:
    from polytask.bulk.predict import (
        BulkPrediction,
        PredictedFiles,
        predict_files,
        start_predicting_files,
    )
    from polytask.bulk.predicting import ShardReport
    from polytask.bulk.settings import BulkSettings
    from polytask.contracts.run import Outcome, run_contracts
    from polytask.evaluation.metrics import KNOWN_METRICS
    from polytask.evaluation.text_maps import TextMaps
    from polytask.export.adapter import export_adapter
    from polytask.export.combine import combine
    from polytask.export.hugging_face import HuggingFaceFolder, export_hugging_face
    from polytask.export.merge import export_merged
    from polytask.export.onnx import Exported, export_onnx
    from polytask.export.onnx_folder import load_onnx
    from polytask.export.push import push
    from polytask.export.replay import Replay
    from polytask.fitting import Fitted, fit
    from polytask.methods import TABLES, options_of
    from polytask.plugins.files import registered_methods
    from polytask.plugins.register import register
    from polytask.plugins.trust import trust_plugin
    from polytask.pretrained.find import describe_encoder, find_encoder
    from polytask.recipe.reading import read_recipe, recipe_from, write_recipe
    from polytask.recipe.records import Recipe
    from polytask.recipe.starter import start_recipe
    from polytask.recipe.task_classes import Choice, Classes, Match, MultiLabel, Score, Tokens, YesNo
    from polytask.runs.add import add_class, add_task, start_adding, start_adding_class
    from polytask.runs.finish import Finished
    from polytask.runs.prepare import Prepared, describe_task, prepare
    from polytask.runs.pretrain import Pretrained, pretrain, start_pretraining
    from polytask.runs.probe import with_probes
    from polytask.runs.report import write_report
    from polytask.runs.run import Running, rehearse, start_training, train
    from polytask.runs.score import Evaluated, evaluate_run
    from polytask.runs.summary import Summary
    from polytask.runs.text_maps import text_maps, write_text_maps
    from polytask.serving.explanation import Explanation, WordEffect
    from polytask.serving.files import PredictedFile, predict_file
    from polytask.serving.limits import ServingLimits
    from polytask.serving.predictor import Predictor, load
    from polytask.serving.server import serve
    from polytask.studies.compare import StudyRunning, compare_runs
    from polytask.studies.local_engine import LocalEngine
    from polytask.studies.ray_engine import RayEngine
    from polytask.studies.runner import CellReport
    from polytask.studies.study import read_study
    from polytask.tasks.finding import Finding
    from polytask.tuning.result import Tuned
    from polytask.tuning.search import TuneReport, Tuning
    from polytask.tuning.tune import start_tuning, tune
    from polytask.types import EvalReport, Prediction, Span, StepReport, TaskScore, UserError

__all__ = [
    "KNOWN_METRICS",
    "TABLES",
    "BulkPrediction",
    "BulkSettings",
    "CellReport",
    "Choice",
    "Classes",
    "EvalReport",
    "Evaluated",
    "Explanation",
    "Exported",
    "Finding",
    "Finished",
    "Fitted",
    "HuggingFaceFolder",
    "LocalEngine",
    "Match",
    "MultiLabel",
    "Outcome",
    "PredictedFile",
    "PredictedFiles",
    "Prediction",
    "Predictor",
    "Prepared",
    "Pretrained",
    "RayEngine",
    "Recipe",
    "Replay",
    "Running",
    "Score",
    "ServingLimits",
    "ShardReport",
    "Span",
    "StepReport",
    "StudyRunning",
    "Summary",
    "TaskScore",
    "TextMaps",
    "Tokens",
    "TuneReport",
    "Tuned",
    "Tuning",
    "UserError",
    "WordEffect",
    "YesNo",
    "__version__",
    "add_class",
    "add_task",
    "combine",
    "compare_runs",
    "describe_encoder",
    "describe_task",
    "evaluate_run",
    "export_adapter",
    "export_hugging_face",
    "export_merged",
    "export_onnx",
    "find_encoder",
    "fit",
    "load",
    "load_onnx",
    "options_of",
    "predict_file",
    "predict_files",
    "prepare",
    "pretrain",
    "push",
    "read_recipe",
    "read_study",
    "recipe_from",
    "register",
    "registered_methods",
    "rehearse",
    "run_contracts",
    "serve",
    "start_adding",
    "start_adding_class",
    "start_predicting_files",
    "start_pretraining",
    "start_recipe",
    "start_training",
    "start_tuning",
    "text_maps",
    "train",
    "trust_plugin",
    "tune",
    "with_probes",
    "write_recipe",
    "write_report",
    "write_text_maps",
]

_MODULES = {
    "runs.add": ("add_class", "add_task", "start_adding", "start_adding_class"),
    "bulk.predict": ("BulkPrediction", "PredictedFiles", "predict_files", "start_predicting_files"),
    "bulk.predicting": ("ShardReport",),
    "bulk.settings": ("BulkSettings",),
    "contracts.run": ("Outcome", "run_contracts"),
    "methods": ("TABLES", "options_of"),
    "plugins.files": ("registered_methods",),
    "plugins.register": ("register",),
    "plugins.trust": ("trust_plugin",),
    "evaluation.metrics": ("KNOWN_METRICS",),
    "runs.finish": ("Finished",),
    "runs.report": ("write_report",),
    "runs.summary": ("Summary",),
    "runs.text_maps": ("text_maps", "write_text_maps"),
    "evaluation.text_maps": ("TextMaps",),
    "studies.compare": ("StudyRunning", "compare_runs"),
    "studies.local_engine": ("LocalEngine",),
    "studies.ray_engine": ("RayEngine",),
    "studies.runner": ("CellReport",),
    "studies.study": ("read_study",),
    "export.adapter": ("export_adapter",),
    "export.combine": ("combine",),
    "export.hugging_face": ("HuggingFaceFolder", "export_hugging_face"),
    "export.merge": ("export_merged",),
    "export.onnx": ("Exported", "export_onnx"),
    "export.onnx_folder": ("load_onnx",),
    "export.push": ("push",),
    "export.replay": ("Replay",),
    "fitting": ("Fitted", "fit"),
    "runs.prepare": ("Prepared", "describe_task", "prepare"),
    "runs.pretrain": ("Pretrained", "pretrain", "start_pretraining"),
    "runs.probe": ("with_probes",),
    "recipe.reading": ("Recipe", "read_recipe", "recipe_from", "write_recipe"),
    "runs.run": ("Running", "rehearse", "start_training", "train"),
    "runs.score": ("Evaluated", "evaluate_run"),
    "serving.explanation": ("Explanation", "WordEffect"),
    "serving.files": ("PredictedFile", "predict_file"),
    "serving.limits": ("ServingLimits",),
    "serving.predictor": ("Predictor", "load"),
    "serving.server": ("serve",),
    "recipe.starter": ("start_recipe",),
    "recipe.task_classes": ("Choice", "Classes", "Match", "MultiLabel", "Score", "Tokens", "YesNo"),
    "tasks.finding": ("Finding",),
    "tuning.result": ("Tuned",),
    "tuning.search": ("TuneReport", "Tuning"),
    "tuning.tune": ("start_tuning", "tune"),
    "pretrained.find": ("describe_encoder", "find_encoder"),
    "types": ("EvalReport", "Prediction", "Span", "StepReport", "TaskScore", "UserError"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "sklearn":  # a module: scikit-learn is an optional extra
        return import_module("polytask.sklearn")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'polytask' has no attribute {name!r}")
    value = getattr(import_module(f"polytask.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
