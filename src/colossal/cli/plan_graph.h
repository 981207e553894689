// The form of `colossal plan` that works on a graph.
#pragma once
#include <cstdint>
#include <string>

namespace colossal::cli {

/// Options of `colossal plan --graph`. An empty text means that the option was not given.
struct GraphWishes {
  std::string graph, node, mesh, plan, to;
  std::string cluster = "h100-8x";  ///< name or file of a profile, or `this`: the stored one
  int64_t memory = 0;  ///< bytes of a rank; 0 = no limit
  bool json = false;
};

/// Prints what the options ask for. Returns the exit status. Errors: those of plan::read_graph(), plan::solve(),
/// plan::read_plan() and plan::find_profile(); a mesh that is not the plan's; no stored profile.
int plan_graph(const GraphWishes& wishes);

}  // namespace colossal::cli
