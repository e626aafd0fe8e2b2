"""Files of events for TensorBoard: TensorBoard reads from them what it reads from torch's writer."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from polytask.training.event_file import EventFile

EVENTS = [(1e9, 1, {"loss/täsk": 0.25, "rate": 1e-4}), (1e9 + 1, 2, {"loss/täsk": float("nan")}), (1e9 + 2, 300, {})]


def by_torch(folder: Path, start: int) -> None:
    writer = SummaryWriter(str(folder), purge_step=start)
    for when, step, values in EVENTS:
        for name, value in values.items():
            writer.add_scalar(name, value, step, when)
    writer.close()


def by_us(folder: Path, start: int) -> None:
    file = EventFile(folder, start)
    file.add(EVENTS[:1])
    file.add(EVENTS[1:])
    file.close()


def read(folder: Path) -> dict[str, list[str]]:
    board = EventAccumulator(str(folder)).Reload()
    return {name: [str(event) for event in board.Scalars(name)] for name in board.Tags()["scalars"]}


def test_tensorboard_reads_what_torch_writes(tmp_path: Path) -> None:
    by_torch(tmp_path / "torch", 1)
    by_us(tmp_path / "ours", 1)
    assert read(tmp_path / "ours") == read(tmp_path / "torch")
    assert len(read(tmp_path / "ours")["loss/täsk"]) == 2


def test_a_later_file_replaces_the_steps_from_its_start_on(tmp_path: Path) -> None:
    by_us(tmp_path, 1)
    EventFile(tmp_path, 2).close()
    assert [event.step for event in EventAccumulator(str(tmp_path)).Reload().Scalars("loss/täsk")] == [1]


def test_events_can_be_read_while_the_file_is_open(tmp_path: Path) -> None:
    file = EventFile(tmp_path, 1)
    file.add(EVENTS[:1])
    assert [event.step for event in EventAccumulator(str(tmp_path)).Reload().Scalars("rate")] == [1]
    file.close()
