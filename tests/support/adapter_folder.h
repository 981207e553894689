// Folders of peft with random adapters, for the models of test::write_model().
//
//   test::write_adapters(folder / "poet", {"q_proj", "o_proj"}, 2, 1);
#pragma once
#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/checkpoint/peft/folder.h"

namespace colossal::test {

/// Writes adapters of linear layers of the attention of blocks 0 and 3, which have 64 inputs and outputs. They change
/// answers much.
inline void write_adapters(const std::string& folder, const std::vector<std::string>& targets, int64_t rank,
                           uint64_t seed) {
  at::manual_seed(seed);
  std::map<std::string, checkpoint::PeftLayer> layers;
  for (const int64_t block : {0, 3})
    for (const std::string& target : targets)
      layers[concat("model.layers.", block, ".self_attn.", target)] = {
          .a = at::randn({rank, 64}) / 4, .b = at::randn({64, rank}), .rank = rank};
  const checkpoint::PeftConfig config{.rank = rank, .alpha = 4, .targets = targets};
  std::filesystem::create_directories(folder);
  checkpoint::PeftFolder(config, layers, {}).write(folder);
}

}  // namespace colossal::test
