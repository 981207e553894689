#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal plan --graph FILE ...`: lists the nodes of a graph with their costs, the strategies of a node, or the
/// fastest plan on a mesh.
int plan(const Arguments& arguments);

}  // namespace colossal::cli
