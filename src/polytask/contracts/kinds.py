"""Properties of kinds of labels, on labels as files write them: those that a kind of a plug-in gives as `examples`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.contracts.claims import require, require_close, require_finite
from polytask.kinds.base import Array, Form, Kind, LabelReader
from polytask.kinds.table import label_space
from polytask.plugins.register import FORMS
from polytask.settings import TaskSpec
from polytask.types import NO_LABEL, LabelSpace

FEWEST = 6


@dataclass(frozen=True)
class Subject:
    """A kind, and labels as files write them."""

    kind: Kind
    written: tuple[Any, ...]

    @property
    def form(self) -> str:
        return self.kind.form or self.kind.name

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec("t", self.kind.name, ("text",), "label", "train.csv", "dev.csv", range=(1.0, 5.0))

    @cached_property
    def read(self) -> tuple[LabelSpace, dict[str, Any], Array]:
        """The label space, what the reader says about its numbers, and the stored numbers."""
        require(len(self.written) >= FEWEST, f"`examples` must be {FEWEST} or more labels, found {len(self.written)}")
        reader = self.kind.reader(self.spec, None, self.written)
        stored = self.stored(reader, self.written)
        return label_space(self.spec, reader.meta, 0, stored), reader.meta, stored

    @property
    def labels(self) -> LabelSpace:
        return self.read[0]

    @property
    def targets(self) -> Array:
        labels, meta, stored = self.read
        return self.kind.targets(labels, meta, stored)

    @property
    def target_tensor(self) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.targets))

    def stored(self, reader: LabelReader, values: Sequence[Any]) -> Array:
        """The numbers of labels. The tags of words are separated by spaces; the words are one character each."""
        if not self.kind.per_word:
            return np.array([reader.read(value) for value in values])
        words = [[(2 * i, 2 * i + 1) for i in range(len(value.split()))] for value in values]
        rows = [reader.read_words(places, value) for places, value in zip(words, values, strict=True)]
        width = max(map(len, rows))
        return np.array([row + [NO_LABEL] * (width - len(row)) for row in rows])

    def outputs(self, seed: int = 0) -> Tensor:
        torch.manual_seed(seed)
        count = self.kind.num_outputs(self.labels)
        if self.form in FORMS:
            return self.kind.squeeze(torch.randn(len(self.written), count))
        uninformed = self.kind.uninformed(self.target_tensor, count)  # shows which words or options there are
        noise = torch.randn(uninformed.shape)
        if self.kind.per_word:
            noise = F.pad(noise[..., :-1] * uninformed[..., -1:], (0, 1))
        return uninformed + noise


# --- labels in files --------------------------------------------------------------------------------------------------
def labels_and_targets_are_the_same_in_two_forms(subject: Subject) -> None:
    """Labels of files and what heads learn are the same in two forms."""
    kind, (labels, meta, stored) = subject.kind, subject.read
    written = [kind.label(meta, number) for number in stored.tolist()]
    require(len(subject.targets) == len(subject.written), "targets must have one row for each label")
    numbers, _ = kind.compared_values(written, written, labels.classes)
    targets, _ = kind.compared(subject.targets, subject.targets, labels)
    same = np.shape(numbers) == np.shape(targets) and np.allclose(numbers, targets, atol=1e-6)
    require(same, "`numbers` of the labels that `label` returns must be `for_metrics` of the targets")
    counts = kind.class_counts(labels, subject.targets)
    require(len(counts) == len(labels.classes), f"class_counts must have {len(labels.classes)} numbers")


def targets_have_the_form(subject: Subject) -> None:
    """Targets, outputs and predicted labels have the type and the shape of the built-in kind that `form` names."""
    targets, labels, form = subject.targets, subject.labels, subject.form
    if form not in FORMS:
        return
    dtype = np.int64 if form == "classes" else np.float32
    require(targets.dtype == dtype, f"targets must be {np.dtype(dtype).name}, found {targets.dtype.name}")
    shape = (len(targets), len(labels.classes)) if form == "multilabel" else (len(targets),)
    require(targets.shape == shape, f"targets must have the shape {shape}, found {targets.shape}")
    outputs = (len(targets), len(labels.classes)) if form in ("classes", "multilabel") else (len(targets),)
    found = tuple(subject.outputs().shape)
    require(found == outputs, f"outputs must have the shape {outputs}, found {found}: see num_outputs and squeeze")
    wanted = {"score": float, "multilabel": tuple}.get(form, str)
    for label, _ in subject.kind.decode(subject.outputs(), labels):
        require(isinstance(label, wanted), f"decode must return labels of type {wanted.__name__}, found {label!r}")


def a_known_label_space_gives_the_same_targets(subject: Subject) -> None:
    """Another file of the same task has the same targets for the same labels."""
    labels, _, _ = subject.read
    reader = subject.kind.reader(subject.spec, labels, ())
    numbers = subject.stored(reader, subject.written[::-1])
    targets = subject.kind.targets(labels, reader.meta, numbers)
    require(np.array_equal(targets[::-1], subject.targets), "with a known label space the targets differ")


# --- outputs ----------------------------------------------------------------------------------------------------------
def the_loss_is_the_mean_of_the_examples_losses(subject: Subject) -> None:
    """The loss is the mean of the examples' losses, and outputs that ignore the texts have a loss above 0."""
    kind, targets, outputs = subject.kind, subject.target_tensor, subject.outputs()
    losses_B, weights_B = kind.terms(outputs, targets)
    shape = tuple(losses_B.shape)
    require(shape == (len(targets),), f"losses must have one number per example, found the shape {shape}")
    loss = kind.loss(outputs, targets)
    require_finite(loss, "the loss")
    mean = losses_B.sum() / weights_B.sum()
    require_close(mean, loss, "`loss` must be the mean of `losses`", atol=1e-5, rtol=1e-5)
    uninformed = kind.uninformed(targets, kind.num_outputs(subject.labels))
    require(uninformed.shape == outputs.shape, f"`uninformed` must have the shape {tuple(outputs.shape)}")
    require(kind.loss(uninformed, targets) > 0, "the loss of outputs that ignore the texts must be above 0")


def distances_are_symmetric_and_zero_for_equal_outputs(subject: Subject) -> None:
    """Distances are symmetric, above 0, and 0 for equal outputs."""
    kind, one, other = subject.kind, subject.outputs(), subject.outputs(1)
    require(abs(float(kind.distance(one, one, False))) <= 1e-6, "the distance of equal outputs must be 0")
    there, back = kind.distance(one, other, False), kind.distance(other, one, False)
    require_close(there, back, "the distance is not symmetric", atol=1e-6, rtol=1e-5)
    require(there > 0, "the distance of different outputs must be above 0")
    fixed = kind.distance(one, other, True)
    require_close(fixed, there, "fixed_targets must change only the gradient", atol=1e-6, rtol=1e-5)


def both_forms_of_distillation_have_the_same_gradient(subject: Subject) -> None:
    """Distillation is 0 for equal outputs (kl), and both of its forms have the same gradient."""
    kind, teacher = subject.kind, subject.outputs(1)
    equal = float(kind.distillation(teacher, teacher, 2.0, "kl"))
    require(abs(equal) <= 1e-5, f"the distillation loss (kl) of equal outputs must be 0, found {equal}")
    gradients: list[Tensor] = []
    forms: tuple[Form, Form] = "kl", "cross_entropy"
    for form in forms:
        outputs = subject.outputs().requires_grad_()
        kind.distillation(outputs, teacher, 3.0, form).backward()
        require(outputs.grad is not None, f"the distillation loss ({form}) has no gradient")
        assert outputs.grad is not None
        gradients.append(outputs.grad)
    one, other = gradients
    require_close(one, other, "the two forms of distillation have different gradients", atol=1e-6, rtol=1e-4)


def the_mean_of_equal_models_is_their_prediction(subject: Subject) -> None:
    """Several models that agree predict together what each of them predicts."""
    kind, labels, outputs = subject.kind, subject.labels, subject.outputs()
    mean = kind.mean_outputs(torch.stack([outputs] * 3))
    same = np.allclose(kind.predicted(mean, labels), kind.predicted(outputs, labels), atol=1e-5)
    require(same, "mean_outputs of equal outputs predicts something else")


# --- predictions ------------------------------------------------------------------------------------------------------
def decoded_predictions_are_the_predicted_numbers(subject: Subject) -> None:
    """Decoded predictions are the predicted numbers, with a probability for every class if there are classes."""
    kind, labels, outputs = subject.kind, subject.labels, subject.outputs()
    decoded = kind.decode(outputs, labels)
    written, numbers_N = [label for label, _ in decoded], kind.predicted(outputs, labels)
    numbers, _ = kind.compared_values(written, written, labels.classes)
    predicted, _ = kind.compared(numbers_N, numbers_N, labels)
    require(np.allclose(numbers, predicted, atol=1e-5), "decode and predicted do not agree")
    has_none = kind.probabilities(outputs, labels) is None
    for _, probabilities in decoded:
        require((probabilities is None) == has_none, "decode and probabilities do not agree on whether there are any")
        if probabilities is not None:
            names = labels.classes or tuple(map(str, range(len(probabilities))))  # options have their indices as names
            require(tuple(probabilities) == names, "decode must return a probability for every class")


def neighbours_with_one_label_predict_it(subject: Subject) -> None:
    """Training rows that all have one label vote for it."""
    if subject.form not in FORMS:  # there is no prediction of tags or options from neighbours
        return
    near = np.repeat(subject.targets[:, None], 4, axis=1)
    predicted, _ = subject.kind.vote(near, np.ones((len(near), 4)), subject.labels)
    require(np.allclose(predicted, subject.targets, atol=1e-5), "vote of neighbours with one label predicts another")


PROPERTIES = (
    labels_and_targets_are_the_same_in_two_forms,
    targets_have_the_form,
    a_known_label_space_gives_the_same_targets,
    the_loss_is_the_mean_of_the_examples_losses,
    distances_are_symmetric_and_zero_for_equal_outputs,
    both_forms_of_distillation_have_the_same_gradient,
    the_mean_of_equal_models_is_their_prediction,
    decoded_predictions_are_the_predicted_numbers,
    neighbours_with_one_label_predict_it,
)
