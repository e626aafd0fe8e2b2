"""Tensors at fixed addresses take the values of any stream of their shape."""

from dataclasses import replace

import numpy as np
import torch

from polytask.kernels.static_tensors import ALIGNMENT, StaticTensors, as_stream, shape_of, tensors_of
from polytask.stream import Stream
from polytask.text.packing import Packer, Part

PACKER = Packer(("one", "two"), cls_id=2, sep_id=3, max_length=16)
CPU = torch.device("cpu")


def stream_of(length: int, tasks: tuple[str, ...] = ("one", "two")) -> Stream:
    parts = [Part(task, [(np.arange(length),)] * 3, labels=np.arange(3)) for task in tasks]
    stream = PACKER.pack(parts, static_shape=True)
    return replace(stream, teacher_outputs={"two": torch.rand(3, 5)}) if "two" in tasks else stream


def test_a_stream_comes_back_with_its_labels_and_teachers() -> None:
    first, second = stream_of(4), stream_of(7)
    static = StaticTensors(tensors_of(first), CPU)
    addresses = [tensor.data_ptr() for tensor in static.tensors]
    for stream in (first, second, first, second):
        static.fill(tensors_of(stream))
        found = as_stream(static.tensors, stream)
        for one, two in zip(tensors_of(found), tensors_of(stream), strict=True):
            assert torch.equal(one, two)
        assert found.labels.keys() == stream.labels.keys()
        assert found.teacher_outputs.keys() == stream.teacher_outputs.keys()
    assert [tensor.data_ptr() for tensor in static.tensors] == addresses
    assert all((address - addresses[0]) % ALIGNMENT == 0 for address in addresses)


def test_tags_come_back_too() -> None:
    first, second = (replace(stream, tag_ids_T=stream.token_ids_T % 3) for stream in (stream_of(4), stream_of(7)))
    static = StaticTensors(tensors_of(first), CPU)
    static.fill(tensors_of(second))
    found = as_stream(static.tensors, second)
    assert torch.equal(found.tag_ids_T, second.tag_ids_T)
    assert torch.equal(found.labels["two"], second.labels["two"])
    assert shape_of(first) == shape_of(second) != shape_of(stream_of(4))


def test_equal_keys_mean_equal_shapes_and_tasks() -> None:
    assert shape_of(stream_of(4)) == shape_of(stream_of(7))
    different = [stream_of(4, ("one",)), stream_of(4, ("two",)), replace(stream_of(4), teacher_outputs={})]
    assert len({shape_of(stream) for stream in (stream_of(4), *different)}) == 4
