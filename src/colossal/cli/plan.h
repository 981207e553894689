#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// `colossal plan CONFIG ...`: predicts a step of a run (cli/plan_run.h). `colossal plan --graph FILE ...`: lists the
/// nodes of a graph with their costs, the strategies of a node, or the fastest plan on a mesh (cli/plan_graph.h).
/// `program` has the models and objectives that the config may name; null = the built-in ones.
int plan(const Arguments& arguments, const run::Program* program);

}  // namespace colossal::cli
