// Layouts of a run of a tiny model, and the comparison of their courses with that of one process.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace colossal::test {

/// Returns the flags of layouts of one to eight ranks: every mode of data, tensor, sequence and pipeline parallelism
/// and every tier, many of them together. `disk` is an empty folder.
inline std::vector<std::vector<std::string>> layouts(const std::string& disk) {
  const std::string tensor = "--parallel.tensor.size=", mode = "--parallel.tensor.mode=",
                    sequence = "--parallel.sequence.size=", of_sequence = "--parallel.sequence.mode=",
                    pipeline = "--parallel.pipeline.size=", data = "--parallel.data=", zero = "--parallel.zero=",
                    micro = "--parallel.pipeline.micro_batches=";
  return {
      {data + "2", zero + "2", tensor + "2"},
      {data + "2", zero + "3", "--memory.recompute=block"},
      {data + "2", zero + "1", tensor + "2", pipeline + "2", micro + "4"},
      {tensor + "4", mode + "2d"},
      {sequence + "2", of_sequence + "ring", pipeline + "2", micro + "2"},
      {sequence + "2", of_sequence + "gather", data + "2", zero + "3"},
      {"--training.accumulate=2", "--memory.host=256MiB"},
      {"--memory.disk=" + disk, "--memory.host=64MiB", data + "2", zero + "3"},  // the last of few_layouts()
      {data + "2"},
      {tensor + "2", "--parallel.tensor.sequence=true"},
      {tensor + "8", mode + "2.5d", "--parallel.tensor.depth=2"},
      {tensor + "8", mode + "3d"},
      {sequence + "2", of_sequence + "ulysses", tensor + "2"},
      {sequence + "2", of_sequence + "ring-self-attention"},
      {pipeline + "4", micro + "4"},
      {tensor + "2", data + "2", zero + "3", "--memory.recompute=block", "--training.accumulate=2"},
      {sequence + "2", of_sequence + "ring", data + "2", zero + "1", "--memory.host=64MiB", "--memory.recompute=block"},
      {pipeline + "2", micro + "2", data + "2", zero + "2", "--memory.host=64MiB", "--memory.recompute=block"},
  };
}
/// Returns a part of layouts() that has each axis, each ZeRO stage and each tier.
inline std::vector<std::vector<std::string>> few_layouts(const std::string& disk) {
  std::vector<std::vector<std::string>> few = layouts(disk);
  few.resize(8);
  return few;
}

/// Expects `got` to be `want` to 1e-10 of each value, or of `floor` if that is greater. `what` names the layout in
/// messages.
inline void expect_near(const std::vector<double>& got, const std::vector<double>& want, const std::string& what,
                        double floor = 0) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got[i], want[i], 1e-10 * std::max(floor, std::abs(want[i]))) << what << ", value " << i;
}

}  // namespace colossal::test
