"""polytask: one encoder, many text tasks."""

from polytask.adding import Adding, add_task
from polytask.build import TABLES, options_of
from polytask.evaluation.metrics import KNOWN_METRICS
from polytask.evaluation.report import write_report
from polytask.experiments.compare import StudyRunning, compare_runs
from polytask.experiments.runner import CellReport
from polytask.experiments.study import read_study
from polytask.export.adapter import export_adapter
from polytask.export.combine import combine
from polytask.preparing import Prepared, describe_task, prepare
from polytask.pretraining import Pretraining, pretrain
from polytask.probing import with_probes
from polytask.recipe import Recipe, read_recipe, recipe_from, write_recipe
from polytask.run import Finished, Rehearsal, Running, train
from polytask.scoring import Evaluated, evaluate_run
from polytask.serving.files import predict_file
from polytask.serving.predictor import Predictor
from polytask.starter import start_recipe
from polytask.tasks.finding import Finding
from polytask.trunk.encoders import describe_encoder, find_encoder
from polytask.types import EvalReport, Prediction, StepReport, TaskScore, UserError
from polytask.version import __version__

load = Predictor.load

__all__ = [
    "KNOWN_METRICS",
    "TABLES",
    "Adding",
    "CellReport",
    "EvalReport",
    "Evaluated",
    "Finding",
    "Finished",
    "Prediction",
    "Predictor",
    "Prepared",
    "Pretraining",
    "Recipe",
    "Rehearsal",
    "Running",
    "StepReport",
    "StudyRunning",
    "TaskScore",
    "UserError",
    "__version__",
    "add_task",
    "combine",
    "compare_runs",
    "describe_encoder",
    "describe_task",
    "evaluate_run",
    "export_adapter",
    "find_encoder",
    "load",
    "options_of",
    "predict_file",
    "prepare",
    "pretrain",
    "read_recipe",
    "read_study",
    "recipe_from",
    "start_recipe",
    "train",
    "with_probes",
    "write_recipe",
    "write_report",
]
