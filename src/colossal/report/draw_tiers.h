// A picture of which tensors are in host memory over the uses of a training step, and what is read and written for it.
//
//   const report::TierStay stay{.tensor = 3, .begin = 10, .end = 25, .was_read = true};
//   write_file("tiers.svg", report::draw_tiers({{.title = "auto", .uses = 200, .stays = {stay}, .used = {{3, 12}}}}));
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace colossal::report {

/// While a tensor is in host memory: from before the use `begin` to before the use `end`.
struct TierStay {
  size_t tensor;
  size_t begin, end;
  bool was_read = false, was_written = false;  ///< from the disk, with which it begins; to the disk, with which it ends
};

struct TierTimeline {
  std::string title;
  size_t uses;  ///< in the step: its length
  std::vector<TierStay> stays;
  struct Use {
    size_t tensor, at;
  };
  std::vector<Use> used;
};

/// An SVG document that needs nothing else: the timelines under one another, a row a tensor, in the order of their
/// first use in the first one that uses them.
std::string draw_tiers(const std::vector<TierTimeline>& timelines);

}  // namespace colossal::report
