"""Would DualPipe's overlap shorten the training step of a mixture of experts? Schedules on a simulated clock.

    python benchmarks/dualpipe_schedule.py [--stages 8] [--micro-batches 32] [--ratios 0 0.1 0.5 1] [--cores 0 0.15 1]

The orders of our schedules are those of `colossal schedule --trace`; those of DualPipe (DeepSeek-V3 report,
arXiv:2412.19437, section 3.2.1) and of DualPipeV, its half with chunks in a V, are made here. Communication between
ranks of experts is part of a pass. A message between stages takes no time.

A rank's forward, input gradient and weight gradient of one micro-batch take 1 each. --ratios: time of dispatch and
combine over time of computation; forward and backward have half of it each. --cores: share of the communication's time
that it takes away from the cores that compute. 0 = none; 0.15 = 20 of the 132 multiprocessors of an H800; 1 = ranks
that copy through shared memory. What overlaps takes max(compute + cores x communication, communication). So gains are
upper bounds: kernels and messages wait for nothing else. Ways to overlap:

    none     communication is exposed
    shared   the shared expert, --shared of a forward pass, is computed during dispatch (what Colossal does)
    weights  also, weight gradients are computed during the communication of a backward pass
    halves   each micro-batch is cut in two; one half computes while the other communicates
    pairs    DualPipe: a forward and a backward pass of two micro-batches run as one

Prints a table for each --cores: the step, relative to one without bubble and communication. Checks first that the clock
agrees with the program's, that every order is complete, and that DualPipe's idle time is (p/2 - 1)(FB + B - 3W).
Half a minute on one core; needs ./colossal.sh build, and no Python package.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("COLOSSAL_BINARY", str(ROOT / "build/release/colossal"))
OURS = ["gpipe", "1f1b", "interleaved", "zero-bubble-h1", "zero-bubble-h2", "zero-bubble-v", "v-half", "v-min",
        "hanayo", "chimera"]
ZIGZAG = {"zero-bubble-v", "v-half", "v-min", "hanayo"}
WAYS = ["none", "shared", "weights", "halves"]
KINDS = {"Forward": "F", "Backward": "B", "BackwardInput": "I", "BackwardWeight": "W"}


class Costs:
    """Times of passes. A pass of a chunk takes `share` of a rank's; kinds: F, I (input gradients), W, B = I + W."""

    def __init__(self, ratio, cores, way, shared):
        self.message = 1.5 * ratio  # dispatch and combine, in forward and again in backward
        self.cores, self.way = cores, way
        self.hidden = min(self.message / 2, shared) * (1 - cores) if way != "none" else 0

    def overlapped(self, compute, message):
        return max(compute + self.cores * message, message)

    def of(self, kind):
        c = self.message
        if kind == "W":
            return 1
        if self.way == "halves":
            return self.overlapped({"F": 1, "I": 1, "B": 2}[kind], c)
        if kind == "F":
            return 1 + c - self.hidden
        if kind == "B":
            return 1 + self.overlapped(1, c) if self.way == "weights" else 2 + c
        return 1 + c

    def of_pair(self):
        return self.overlapped(3, 2 * self.message)


class Order:
    """Lists of (kind, micro-batch, chunk) per rank; a pair is a tuple of two. stage_of: stage of a rank's chunk."""

    def __init__(self, lists, stage_of, stages, share, pipe_of=lambda micro_batch: 0, weights=1):
        self.lists, self.stage_of, self.stages = lists, stage_of, stages
        self.share, self.pipe_of, self.weights = share, pipe_of, weights


def ours(name, stages, micro_batches, costs):
    """Returns the program's order, planned for these costs, and the program's makespan."""
    with tempfile.TemporaryDirectory() as folder:
        planned = ",".join(str(costs.of(kind)) for kind in "FIW")
        done = subprocess.run([PROGRAM, "schedule", "--name", name, "--stages", str(stages), "--micro-batches",
                               str(micro_batches), "--costs", planned, "--trace", f"{folder}/trace.json"],
                              capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        with open(f"{folder}/trace.json") as trace:
            events = [e for e in json.load(trace)["traceEvents"] if e.get("cat") in KINDS]
    chunks = 1 + max(ord(e["name"][-1]) - ord("a") if e["name"][-1].isalpha() else 0 for e in events)
    lists = [[] for _ in range(stages)]
    for e in sorted(events, key=lambda e: e["ts"]):
        text = e["name"]
        chunk = ord(text[-1]) - ord("a") if text[-1].isalpha() else 0
        lists[e["tid"]].append((KINDS[e["cat"]], int(text[1:].rstrip("abcdefghijklmnop")), chunk))
    makespan = (max(e["ts"] + e["dur"] for e in events) - min(e["ts"] for e in events)) / 1e3
    if name == "chimera":
        order = Order(lists, lambda r, c: r if c == 0 else stages - 1 - r, stages, 1,
                      lambda micro_batch: 2 * micro_batch // micro_batches, 2)
    elif name in ZIGZAG:
        order = Order(lists, lambda r, c: c * stages + (r if c % 2 == 0 else stages - 1 - r), stages * chunks,
                      1 / chunks)
    else:
        order = Order(lists, lambda r, c: c * stages + r, stages * chunks, 1 / chunks)
    return order, makespan


def eight_parts(index, ranks, count):
    """Returns the list of rank `index` of a V over `ranks`, whose chunks each run `count` micro-batches. Chunk 0 is the
    first half of the V. (kind, number, chunk); numbers count the micro-batches of a chunk."""
    done = {(kind, chunk): 0 for kind in "FB" for chunk in (0, 1)}
    waiting, steps = [], []
    inner = ranks - 1 - index  # ranks that are nearer to the V's tip

    def take(kind, chunk):
        number = done[kind, chunk]
        done[kind, chunk] += 1
        return kind, number, chunk

    def forward(chunk):
        steps.append(take("F", chunk))

    def backward(chunk, split=False):
        _, number, _ = step = take("B", chunk)
        if split:
            waiting.append(("W", number, chunk))
            step = ("I", number, chunk)
        steps.append(step)

    def pair(chunk):  # forward of this chunk, backward of the other one
        steps.append((take("F", chunk), take("B", 1 - chunk)))

    def weight():
        steps.append(waiting.pop(0))

    for _ in range(2 * inner):
        forward(0)
    for _ in range(index + 1):
        forward(0)
        forward(1)
    for _ in range(inner):
        backward(1, split=True)
        weight()
        forward(1)
    for i in range(count - 2 * ranks + index + 1):
        if i == 0 and inner == 0:  # the tip would wait for its own pass
            forward(0)
            backward(1)
        else:
            pair(0)
        pair(1)
    for _ in range(inner):
        backward(1)
        pair(1)
    for i in range(index + 1):
        middle = (index + 1) // 2
        backward(1, split=i > middle or (i == middle and index % 2 == 1))
        backward(0, split=i >= middle)
    for _ in range(inner):
        weight()
        backward(0, split=True)
    for _ in range(index + 1):
        weight()
    return steps


def mapped(step, change):
    return tuple(change(s) for s in step) if isinstance(step[0], tuple) else change(step)


def dualpipe(stages, micro_batches):
    """Two directions, each with half the micro-batches and a copy of the weights. Chunk 0 of a rank runs downwards."""
    half = micro_batches // 2
    lists = []
    for rank in range(stages):
        upper = rank >= stages // 2
        steps = eight_parts(min(rank, stages - 1 - rank), stages // 2, half)
        # In the upper half of the ranks the near direction is the one that runs upwards.
        lists.append([mapped(s, lambda s: (s[0], s[1] + half * (s[2] ^ upper), s[2] ^ upper)) for s in steps])
    return Order(lists, lambda r, c: r if c == 0 else stages - 1 - r, stages, 1,
                 lambda micro_batch: int(micro_batch >= half), 2)


def dualpipe_v(stages, micro_batches):
    lists = [eight_parts(rank, stages, micro_batches) for rank in range(stages)]
    return Order(lists, lambda r, c: r if c == 0 else 2 * stages - 1 - r, 2 * stages, 0.5)


def passes_of(steps):
    return [s for step in steps for s in (step if isinstance(step[0], tuple) else (step,))]


def check_complete(order, keys):
    """Each micro-batch passes each stage once in each direction, and no weight gradient is lost."""
    passes = [s for steps in order.lists for s in passes_of(steps)]
    micro_batches = len({key[2] for key in keys})
    count = {kind: sum(s[0] == kind for s in passes) for kind in "FBIW"}
    assert len(keys) == len(passes), "a pass runs twice"
    assert count["F"] == count["B"] + count["I"] == order.stages * micro_batches, "a pass is missing"
    assert count["I"] == count["W"], "weight gradients are missing"


def simulate(order, costs):
    """Returns (makespan, longest span of a rank, most live activations of a rank)."""
    ranks = len(order.lists)
    done, clock, at = {}, [0.0] * ranks, [0] * ranks
    first, live, peak = [math.inf] * ranks, [0.0] * ranks, [0.0] * ranks

    def key(rank, step):
        kind, micro_batch, chunk = step
        return "B" if kind == "I" else kind, order.pipe_of(micro_batch), micro_batch, order.stage_of(rank, chunk)

    def ready(rank, step):
        """Returns the time at which the input of a pass has arrived, or None."""
        kind, pipe, micro_batch, stage = key(rank, step)
        if kind == "W":
            needs = [("B", pipe, micro_batch, stage)]
        elif kind == "F":
            needs = [("F", pipe, micro_batch, stage - 1)] if stage else []
        else:
            needs = [("F", pipe, micro_batch, stage)]
            needs += [("B", pipe, micro_batch, stage + 1)] if stage + 1 < order.stages else []
        times = [done.get(need) for need in needs]
        return None if None in times else max(times, default=0.0)

    moved = True
    while moved:
        moved = False
        for rank, steps in enumerate(order.lists):
            while at[rank] < len(steps):
                step = steps[at[rank]]
                passes = step if isinstance(step[0], tuple) else (step,)
                times = [ready(rank, s) for s in passes]
                if None in times:
                    break
                begin = max([clock[rank], *times])
                length = order.share * (costs.of_pair() if len(passes) == 2 else costs.of(step[0]))
                end = begin + length
                if costs.way == "weights" and step[0] == "W" and at[rank] and steps[at[rank] - 1][0] == "I":
                    # It runs during the communication of the pass before it, which has taken its whole time already.
                    end = max(begin, begin + order.share * (costs.overlapped(1, costs.message) - costs.message))
                for s in passes:
                    done[key(rank, s)] = end
                    live[rank] += order.share * {"F": 1, "B": -1, "I": -0.5, "W": -0.5}[s[0]]
                peak[rank] = max(peak[rank], live[rank])
                first[rank] = min(first[rank], begin)
                clock[rank] = end
                at[rank] += 1
                moved = True
    assert all(at[r] == len(order.lists[r]) for r in range(ranks)), "the order waits forever"
    check_complete(order, {key(r, s) for r, steps in enumerate(order.lists) for s in passes_of(steps)})
    return max(clock), max(c - f for c, f in zip(clock, first)), max(peak)


def check(options):
    plain = Costs(0, 0, "none", 0)
    for name in OURS:
        order, makespan = ours(name, options.stages, options.micro_batches, plain)
        assert abs(simulate(order, plain)[0] - makespan) < 1e-6 * makespan, f"{name}: {makespan}"
    exact = simulate(dualpipe(options.stages, options.micro_batches), plain)
    idle = (options.stages // 2 - 1) * (3 + 2 - 3)
    print(f"DualPipe without communication: idle {exact[0] - 3 * options.micro_batches:g}, formula {idle}")
    assert abs(exact[0] - 3 * options.micro_batches - idle) < 1e-9


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stages", type=int, default=8, help="ranks of the pipeline, an even number")
    parser.add_argument("--micro-batches", type=int, default=32, help="an even number, at least twice the stages")
    parser.add_argument("--ratios", type=float, nargs="+", default=[0, 0.01, 0.1, 0.25, 0.5, 1])
    parser.add_argument("--cores", type=float, nargs="+", default=[0, 0.15, 1])
    parser.add_argument("--shared", type=float, default=0.08, help="the shared expert's part of a forward pass")
    options = parser.parse_args()
    p, m = options.stages, options.micro_batches
    check(options)
    for cores in options.cores:
        print(f"\n{p} stages, {m} micro-batches, cores {cores:g}: step / (3 x micro-batches), by communication / "
              "compute\n")
        print("| overlap | schedule | live | weights | " + " | ".join(f"{r:g}" for r in options.ratios) + " |")
        print("|---|---|---|---|" + "---|" * len(options.ratios))
        rows = [(way, name) for way in WAYS for name in OURS] + [("pairs", "dualpipe"), ("pairs", "dualpipe-v")]
        for way, name in rows:
            cells, live = [], 0
            for ratio in options.ratios:
                costs = Costs(ratio, cores, "shared" if way == "pairs" else way, options.shared)
                if way == "pairs":
                    order = (dualpipe if name == "dualpipe" else dualpipe_v)(p, m)
                else:
                    order, _ = ours(name, p, m, costs)
                _, span, peak = simulate(order, costs)
                live = max(live, peak)
                cells.append(f"{span / (3 * m):.3f}")
            print(f"| {way} | {name} | {live:g} | {order.weights} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
