// Models that draw, under products of layouts against one process in fp64: replicas, tensor and sequence parallelism,
// pipelines, ZeRO, a host and a disk tier, and recomputed blocks, all at once. A fast run has a few of the products,
// with one step each. COLOSSAL_ALL_LAYOUTS=1 has all up to 8 ranks, with ten steps each, and takes about an hour;
// COLOSSAL_ALL_LAYOUTS=17 has every 17th of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "support/covering_array.h"
#include "support/parity.h"
#include "support/temporary_folder.h"

namespace colossal::test::layout_products_test {
namespace {

using parallel::SequenceConfig, parallel::TensorConfig;

/// Returns n if every nth product is to run; 0 = a few.
int every() {
  const char* value = std::getenv("COLOSSAL_ALL_LAYOUTS");
  return value ? std::max(1, std::atoi(value)) : 0;
}

/// A model and the sequence modes under which it runs.
struct Drawn {
  std::string name;
  models::ModelShape shape;
  std::vector<SequenceConfig> sequences;
};

std::ostream& operator<<(std::ostream& out, const Drawn& drawn) { return out << drawn.name; }

std::vector<Drawn> models_that_draw() {
  const std::vector<SequenceConfig> one_axis{{}, {2, "ulysses"}, {2, "ring"}, {4, "usp", 2}, {2, "gather"}};
  std::vector<SequenceConfig> two_axes = one_axis;
  two_axes.push_back({2, "dsp"});
  return {{"Unet", tiny_unet(), {{}}},
          {"Dit", tiny_dit(), one_axis},
          {"Flux", tiny_flux(), one_axis},
          {"OpenSora", tiny_open_sora(), one_axis},
          {"Stdit", tiny_stdit(), two_axes}};
}

const std::vector<TensorConfig> kTensors{
    {}, {.size = 2}, {.size = 4, .mode = "2d"}, {.size = 8, .mode = "2.5d", .depth = 2}, {.size = 8, .mode = "3d"}};

/// Values of the axes: replicas, tensor, sequence, pipeline, ZeRO, tiers, recompute.
ParityCase case_of(const Drawn& drawn, const ArrayRow& row, const std::string& disk) {
  ParityCase c{
      .shape = drawn.shape, .data = 1 + row[0], .tensor = kTensors[row[1]], .sequences = drawn.sequences[row[2]]};
  if (row[3] > 0) c.pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 2};
  c.zero = row[4];
  if (row[5] > 0) c.disk = disk, c.host = 1 << 16;
  if (row[6] > 0) c.recompute = "block";
  c.batch = std::max<int64_t>(2, c.data * parallel::batch_parts(c.tensor) * (row[3] > 0 ? 2 : 1));
  c.sequence = 18;
  c.steps = every() > 0 ? 10 : 1;
  return c;
}

int64_t ranks_of(const ParityCase& c) {
  return c.data * std::max<int64_t>(1, c.tensor.size) * std::max<int64_t>(1, c.sequences.size) *
         std::max<int64_t>(1, c.pipeline.size);
}

/// Returns the products of a fast run: everything at once on 8 ranks, and what that leaves out.
std::vector<ArrayRow> few(const Drawn& drawn) {
  const int last = static_cast<int>(drawn.sequences.size()) - 1;
  return {{1, 0, last, 1, 3, 1, 1}, {1, 1, last, 0, 2, 1, 0}, {0, 1, std::min(1, last), 1, 1, 1, 1}};
}

/// Returns every nth product of up to 8 ranks.
std::vector<ArrayRow> many(const Drawn& drawn) {
  std::vector<ArrayRow> rows;
  const std::vector<int> sizes{2, static_cast<int>(kTensors.size()), static_cast<int>(drawn.sequences.size()), 2, 4, 2,
                               2};
  ArrayRow row(sizes.size());
  int found = 0;
  for (size_t axis = 0; axis < sizes.size();) {
    if (ranks_of(case_of(drawn, row, "")) <= 8 && found++ % every() == 0) rows.push_back(row);
    for (axis = 0; axis < sizes.size() && ++row[axis] == sizes[axis]; ++axis) row[axis] = 0;
  }
  return rows;
}

class LayoutProducts : public testing::TestWithParam<Drawn> {};

TEST_P(LayoutProducts, EqualSingleProcess) {
  for (const ArrayRow& row : every() > 0 ? many(GetParam()) : few(GetParam())) {
    const TemporaryFolder folder;
    const ParityCase c = case_of(GetParam(), row, folder.path());
    SCOPED_TRACE(concat("data ", c.data, ", tensor ", name_of(c.tensor), ", sequence ", c.sequences.size, " ",
                        c.sequences.mode, ", pipeline ", c.pipeline.size, ", zero ", c.zero, ", tiers ", row[5], ", ",
                        c.recompute));
    EXPECT_NO_THROW(check_parity(c));
  }
}

INSTANTIATE_TEST_SUITE_P(ModelsThatDraw, LayoutProducts, testing::ValuesIn(models_that_draw()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace colossal::test::layout_products_test
