"""Solves the choice problems of small decoders, and on meshes of two axes of two linear layers, with HiGHS, as integer
programs: our solver must find the same optimum, and must find none where HiGHS finds none."""

import json
import os
import subprocess

from interop import need

highspy, np = need("highspy", "numpy")


def problem_of(layers, mesh, share):
    words = [os.environ["COLOSSAL_CHOICE_PROBLEM_PROBE"], str(layers), mesh, str(share)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Program:
    """An integer program: columns with costs, rows with bounds. A choice is a binary column; a pair of choices is a
    column that the rows below hold to the product of both, which needs no integrality."""

    def __init__(self, problem):
        self.problem, self.columns, self.rows = problem, [], []
        self.choices = [[self.column(cost, True) for cost in variable["cost"]] for variable in problem["variables"]]
        for choices in self.choices:
            self.rows.append((1, 1, [(column, 1) for column in choices]))
        self.live = [{} for _ in range(problem["moments"])]
        for variable, choices in zip(problem["variables"], self.choices, strict=True):
            for live in variable["live"]:
                self.add_live(choices, live["bytes"], [(live["first"], live["last"])])
        for pair in problem["pairs"]:
            self.add_pair(pair)
        if problem["limit"] > 0:
            for row in {tuple(sorted(live.items())) for live in self.live}:
                self.rows.append((-np.inf, 1, [(column, size / problem["limit"]) for column, size in row]))

    def column(self, cost, is_integer):
        self.columns.append((0 if cost is None else cost, 0 if cost is None else 1, is_integer))
        return len(self.columns) - 1

    def add_live(self, columns, sizes, intervals):
        for first, last in intervals:
            for moment in range(first, last + 1):
                for column, size in zip(columns, sizes, strict=True):
                    if size:
                        self.live[moment][column] = self.live[moment].get(column, 0) + size

    def add_pair(self, pair):
        first, second = self.choices[pair["first"]], self.choices[pair["second"]]
        cells = [self.column(cost, False) for cost in pair["cost"]]
        for i, choice in enumerate(first):
            row = cells[i * len(second):(i + 1) * len(second)]
            self.rows.append((0, 0, [(cell, 1) for cell in row] + [(choice, -1)]))
        for j, choice in enumerate(second):
            self.rows.append((0, 0, [(cell, 1) for cell in cells[j::len(second)]] + [(choice, -1)]))
        if pair["bytes"]:
            self.add_live(cells, pair["bytes"], pair["intervals"])

    def optimum(self, scale):
        """Returns the least cost, or None if nothing fits. Costs are divided by `scale`, so that tolerances suit
        them."""
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.columns), len(self.rows)
        lp.col_cost_ = np.array([cost / scale for cost, _, _ in self.columns])
        lp.col_lower_ = np.zeros(len(self.columns))
        lp.col_upper_ = np.array([float(upper) for _, upper, _ in self.columns])
        lp.integrality_ = [highspy.HighsVarType.kInteger if integer else highspy.HighsVarType.kContinuous
                           for _, _, integer in self.columns]
        lp.row_lower_ = np.array([float(lower) for lower, _, _ in self.rows])
        lp.row_upper_ = np.array([float(upper) for _, upper, _ in self.rows])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0] + [len(entries) for _, _, entries in self.rows])
        lp.a_matrix_.index_ = np.array([column for _, _, entries in self.rows for column, _ in entries])
        lp.a_matrix_.value_ = np.array([float(value) for _, _, entries in self.rows for _, value in entries])
        solver = highspy.Highs()
        solver.silent()
        for name, value in {"threads": 1, "mip_rel_gap": 1e-9, "mip_feasibility_tolerance": 1e-9,
                            "primal_feasibility_tolerance": 1e-9, "time_limit": 200.0}.items():
            solver.setOptionValue(name, value)
        solver.passModel(lp)
        solver.run()
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return None
        assert status == highspy.HighsModelStatus.kOptimal, status
        return solver.getInfo().objective_function_value * scale


seen = {"free": 0, "limited": 0, "impossible": 0}
DECODER, TWO_AXES = (0, 0.9, 0.75, 0.6, 0.45, 0.1), (0, 0.98, 0.95, 0.9, 0.8, 0.7)
for layers, mesh, shares in (
    (1, "tensor=4", DECODER),
    (2, "tensor=4", DECODER),
    (2, "data=4", DECODER),
    (0, "data=2,tensor=2", TWO_AXES),
    (0, "data=4,tensor=2", TWO_AXES),
    (0, "data=2,tensor=4", TWO_AXES),
):
    fastest = problem_of(layers, mesh, 0)["solved"]["cost"]
    for share in shares:
        problem = problem_of(layers, mesh, share)
        solved = problem["solved"]
        best = Program(problem).optimum(fastest)
        print(layers, mesh, share, best, solved, flush=True)
        if best is None:
            assert solved["cost"] is None, (layers, mesh, share)
            seen["impossible"] += 1
            continue
        assert solved["cost"] is not None, (layers, mesh, share, best)
        assert solved["cost"] >= best * (1 - 1e-6), (layers, mesh, share, best, solved)  # tolerances of HiGHS
        assert solved["proven"], (layers, mesh, share, best, solved)
        assert solved["cost"] <= best * (1 + 1e-6), (layers, mesh, share, best, solved)
        seen["limited" if best > fastest * (1 + 1e-6) else "free"] += 1
assert seen["free"] >= 6 and seen["limited"] >= 8 and seen["impossible"] >= 5, seen
print("equal to HiGHS:", seen)
