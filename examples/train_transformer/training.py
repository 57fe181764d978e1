"""The data-parallel training loop.

One step:
  1. every rank computes the gradient on its rows of the global batch;
  2. the gradients (and the loss, and whether anyone was asked to stop) are summed over ranks;
  3. every rank applies the same update, so parameters stay identical without being sent;
  4. rank 0 reports, and writes a checkpoint when one is due.
The sum has a fixed order and the batch depends on (seed, step) alone, so for one (seed, world size) the curve of a run
that was killed and resumed is that of a run left alone.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adamw import AdamW, Schedule, clip_by_norm
from checkpoints import find_checkpoint, save_checkpoint
from collective import Frame, Patience, PeerLostError, Star
from corpus import Corpus, load_corpus, rank_rows
from launch import EXIT_TERMINATED, Launch, StopRequest
from rendezvous import meet
from reporting import report_checkpoint, report_progress
from transformer import (
    TransformerConfig,
    initial_parameters,
    loss_and_gradient,
    named_views,
    parameter_count,
    weight_decay_mask,
)

_GRADIENT_NORM_LIMIT = 1.0
_RENDEZVOUS_TIMEOUT_S = 60.0
_PEER_TIMEOUT_S = 30.0
_SLEEP_SLICE_S = 0.05


class IncompatibleCheckpointError(Exception):
    """The checkpoint is whole but belongs to a model of another shape."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for. `batch` is the global batch in rows of `sequence` tokens."""

    steps: int
    layers: int
    hidden: int
    heads: int
    sequence: int
    batch: int
    learning_rate: float
    seed: int
    checkpoint_every: int
    keep_checkpoints: int
    step_time_s: float
    text: Path | None
    stopping_patience_s: float = 2.0

    def model(self) -> TransformerConfig:
        return TransformerConfig(self.layers, self.hidden, self.heads, self.sequence)

    def schedule(self) -> Schedule:
        return Schedule(self.learning_rate, warmup_steps=max(1, min(20, self.steps // 10)), total_steps=self.steps)

    def recipe(self, corpus: Corpus) -> dict[str, Any]:
        """Everything that decides the loss curve, apart from the world size."""
        return {
            "model": asdict(self.model()),
            "steps": self.steps,
            "batch": self.batch,
            "learning_rate": self.learning_rate,
            "seed": self.seed,
            "text_sha256": corpus.sha256,
        }


class TrainingState:
    """Step, parameters and both AdamW moments in one frame, so that rank 0 can hand all of it to the others at once."""

    def __init__(self, config: TransformerConfig) -> None:
        size = parameter_count(config)
        self.frame = Frame(scalars=1, values=3 * size)
        self.parameters = self.frame.values[:size]
        self.first_moment = self.frame.values[size : 2 * size]
        self.second_moment = self.frame.values[2 * size :]

    @property
    def step(self) -> int:
        """Updates done so far."""
        return int(self.frame.scalars[0])

    @step.setter
    def step(self, value: int) -> None:
        self.frame.scalars[0] = value


class Run:
    """One rank of one run from rendezvous to exit code."""

    def __init__(self, options: Options, launch: Launch, stop: StopRequest) -> None:
        self._options = options
        self._launch = launch
        self._stop = stop
        self._config = options.model()
        self._schedule = options.schedule()
        self._corpus = load_corpus(options.text)
        self._recipe = options.recipe(self._corpus)
        self._optimizer = AdamW(weight_decay_mask(self._config))
        self._state = TrainingState(self._config)
        self._saved_step = -1

    def execute(self) -> int:
        """Exit code: 0 when all steps are done, 143 when stopped by SIGTERM.

        Raises RendezvousError, TerminatedError, PeerLostError, IncompatibleCheckpointError.
        """
        configuration = hashlib.sha256(json.dumps(self._recipe, sort_keys=True).encode()).hexdigest()
        launch = self._launch
        _log(f"rank {launch.rank} of {launch.world_size}, meeting at {launch.master_address}:{launch.master_port}")
        peers = meet(launch, configuration, _RENDEZVOUS_TIMEOUT_S, lambda: self._stop.requested)
        stopping_s = self._options.stopping_patience_s + self._options.step_time_s
        patience = Patience(_PEER_TIMEOUT_S + self._options.step_time_s, stopping_s, lambda: self._stop.requested)
        star = Star(self._launch.rank, peers, patience)
        try:
            if self._launch.rank == 0:
                self._restore_or_initialise()
            star.broadcast(self._state.frame)
            return self._train(star)
        except PeerLostError:
            if not self._stop.requested:
                raise
            self._save_if_due(force=True)  # the others were stopped first; the state is that of the last whole step
            return EXIT_TERMINATED
        finally:
            star.close()

    def _restore_or_initialise(self) -> None:
        checkpoint = find_checkpoint(self._launch.restore_from, self._launch.checkpoint_dir, _log)
        state = self._state
        if checkpoint is None:
            state.parameters[...] = initial_parameters(self._config, self._options.seed)
            _log(
                f"starting at step 0 with {state.parameters.size} parameters, {len(self._corpus.tokens)} bytes of text"
            )
            return
        saved: Mapping[str, Any] = checkpoint.header["recipe"]
        if saved["model"] != self._recipe["model"]:
            raise IncompatibleCheckpointError(f"{checkpoint.path} holds {saved['model']}, not {self._recipe['model']}")
        for name, value in self._recipe.items():
            if saved[name] != value:
                _log(f"{name} was {saved[name]} when the checkpoint was written and is {value} now")
        state.parameters[...] = checkpoint.arrays["parameters"]
        state.first_moment[...] = checkpoint.arrays["first_moment"]
        state.second_moment[...] = checkpoint.arrays["second_moment"]
        state.step = self._saved_step = checkpoint.step
        _log(f"resuming at step {checkpoint.step} from {checkpoint.path}")

    def _train(self, star: Star) -> int:
        options, state = self._options, self._state
        parameters = named_views(state.parameters, self._config)
        reduced = Frame(scalars=2, values=state.parameters.size)  # scalars: summed loss, ranks asked to stop
        gradients = named_views(reduced.values, self._config)
        mine = rank_rows(self._launch.rank, self._launch.world_size, options.batch)
        global_tokens = options.batch * options.sequence
        if self._launch.rank == 0:
            print("step,loss,learning_rate,gradient_norm,step_s", flush=True)
        while state.step < options.steps:
            started_s = time.perf_counter()
            step = state.step + 1
            tokens, targets = self._corpus.global_batch(options.seed, step, options.batch, options.sequence)
            loss = loss_and_gradient(
                parameters, gradients, self._config, tokens[mine], targets[mine], 1.0 / global_tokens
            )
            reduced.scalars[:] = loss, float(self._stop.requested)
            star.all_reduce(reduced)
            norm = clip_by_norm(reduced.values, _GRADIENT_NORM_LIMIT)
            rate = self._schedule.learning_rate(step)
            self._optimizer.update(
                state.parameters, reduced.values, state.first_moment, state.second_moment, step, rate
            )
            state.step = step
            stopping = bool(reduced.scalars[1])
            if not stopping:
                self._sleep_until(started_s + options.step_time_s)
            self._report(float(reduced.scalars[0]) / global_tokens, rate, norm, time.perf_counter() - started_s)
            self._save_if_due(force=stopping or step == options.steps)
            if stopping:
                return EXIT_TERMINATED
        return 0

    def _report(self, loss: float, rate: float, norm: float, step_s: float) -> None:
        if self._launch.rank != 0:
            return
        step = self._state.step
        print(f"{step},{loss:.9g},{rate:.6g},{norm:.6g},{step_s:.4f}", flush=True)
        metrics = {
            "loss": float(f"{loss:.9g}"),
            "learning_rate": float(f"{rate:.6g}"),
            "gradient_norm": float(f"{norm:.6g}"),
            "tokens_per_s": round(self._options.batch * self._options.sequence / step_s, 1),
        }
        report_progress(step, self._options.steps, metrics)

    def _save_if_due(self, *, force: bool) -> None:
        """Only rank 0 writes, and no step twice."""
        state, directory = self._state, self._launch.checkpoint_dir
        due = force or (self._options.checkpoint_every and state.step % self._options.checkpoint_every == 0)
        if self._launch.rank != 0 or directory is None or not due or state.step == self._saved_step:
            return
        path = save_checkpoint(
            directory,
            state.step,
            {"recipe": self._recipe, "world_size": self._launch.world_size, "run_id": self._launch.run_id},
            {
                "parameters": state.parameters,
                "first_moment": state.first_moment,
                "second_moment": state.second_moment,
            },
            self._options.keep_checkpoints,
        )
        self._saved_step = state.step
        report_checkpoint(state.step, path)

    def _sleep_until(self, wake_s: float) -> None:
        while not self._stop.requested and (rest_s := wake_s - time.perf_counter()) > 0:
            time.sleep(min(rest_s, _SLEEP_SLICE_S))


def _log(text: str) -> None:
    print(text, flush=True)
