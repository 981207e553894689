// A picture of the tensors in host memory during a training step, and of the reads and writes that move them.
//
//   const report::TierStay stay{.tensor = 3, .begin = 10, .end = 25, .was_read = true};
//   write_file("tiers.svg", report::draw_tiers({{.title = "auto", .uses = 200, .stays = {stay}, .used = {{3, 12}}}}));
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace colossal::report {

/// A period in which a tensor is in host memory: from before the use `begin` to before the use `end`.
struct TierStay {
  size_t tensor;
  size_t begin, end;
  bool was_read = false, was_written = false;  ///< it starts with a read from disk; it ends with a write to disk
};

/// The periods and uses of all tensors in one training step.
struct TierTimeline {
  std::string title;
  size_t uses;  ///< number of uses in the step, the length of the time axis
  std::vector<TierStay> stays;
  struct Use {
    size_t tensor, at;
  };
  std::vector<Use> used;
};

/// Returns a self-contained SVG document with the timelines below each other. Each tensor has a row. The rows are in
/// order of first use in the first timeline that uses the tensor.
std::string draw_tiers(const std::vector<TierTimeline>& timelines);

}  // namespace colossal::report
