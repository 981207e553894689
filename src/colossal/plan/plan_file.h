// plan.json: the strategy of each node, in a file that a user can edit.
//
//   {"format": "colossal-plan", "version": 1, "mesh": {"data": 2, "tensor": 4},
//    "nodes": [
//     {"name": "fc1", "op": "linear", "shape": [16, 64], "strategy": "data=dim0,tensor=out"}]}
//
// Specs, conversions and prices are not in the file, because they follow from the strategies.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "colossal/plan/solver.h"

namespace colossal::plan {

/// What plan.json has.
struct PlanFile {
  Mesh mesh;
  std::vector<std::string> strategies;  ///< one for each node of the graph
};

/// Returns the JSON text of a plan, one line for each node.
std::string print_plan(const Plan& plan, const Graph& graph);
/// Writes print_plan() to a file. Errors ("file"): it cannot be written.
void write_plan(const Plan& plan, const Graph& graph, const std::string& path);

/// Returns what the text has. `name` stands for its file in messages.
/// Errors ("plan"): the text is no plan; an unknown member; the plan is of another graph: the message names the first
///                  node that differs. Strategies are checked by price_plan().
PlanFile parse_plan(std::string_view text, const std::string& name, const Graph& graph);
/// Reads a file. Errors: those of parse_plan(); "file" if it cannot be read.
PlanFile read_plan(const std::string& path, const Graph& graph);

}  // namespace colossal::plan
