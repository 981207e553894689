// A row of `colossal bench diffusion`: the elements that all ranks together sent, beside the formula.
//
//   const DiffusionRow row{.ranks = 2, .mode = "rows", .what = "decode 1024 px", .sent = 100, .formula = 100};
#pragma once
#include <cstdint>
#include <string>

namespace colossal::cli {

/// Elements that all ranks together send in one piece of work.
struct DiffusionRow {
  int64_t ranks = 0;
  std::string mode;  ///< how the ranks divide the work: "rows", "tensor" or "guidance"
  std::string what;  ///< the work, such as "decode 1024 px"
  int64_t sent = 0, formula = 0;
};

}  // namespace colossal::cli
