// Whole models in a pipeline against one process that accumulates the same micro-batches, in fp64: losses, every
// gradient, and weights after ten steps, to the last bit if the order of additions allows it.
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/schedule/check.h"
#include "colossal/schedule/make.h"
#include "support/parity.h"
#include "support/ranks_values.h"
#include "support/tolerance.h"

namespace colossal::test::pipeline_parity_test {
namespace {

struct Case {
  std::string schedule;
  int64_t size, chunks;
};

/// Returns every family on each of these numbers of ranks that it supports.
std::vector<Case> cases(const std::vector<int64_t>& sizes) {
  std::vector<Case> list;
  for (const schedule::Family& family : schedule::families())
    for (const int64_t size : sizes) {
      if (std::string(family.name) == "chimera" && size % 2 != 0) continue;
      list.push_back({family.name, size, family.default_chunks});
    }
  return list;
}

std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  std::string name = concat(info.param.schedule, "_", info.param.size);
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
}

class PipelineParity : public testing::TestWithParam<Case> {
 protected:
  ParityCase make(models::ModelShape shape) const {
    const Case& p = GetParam();
    shape.layers = p.size * p.chunks + (p.size == 3 ? 1 : 0);  // makes uneven stages on three ranks
    ParityCase c{.shape = std::move(shape)};
    c.pipeline = {.size = p.size, .schedule = p.schedule, .micro_batches = 2 * p.size};
    c.batch = c.pipeline.micro_batches;
    return c;
  }
  bool in_order() const {
    const ParityCase c = make(tiny_gpt2());
    return schedule::accumulates_in_order(
               schedule::make_schedule({.name = c.pipeline.schedule,
                                        .stages = static_cast<int>(c.pipeline.size),
                                        .micro_batches = static_cast<int>(c.pipeline.micro_batches)})) &&
           c.pipeline.schedule != "chimera";  // because its halves are summed at the end
  }
};

TEST_P(PipelineParity, TiedGpt2WithDropoutEqualsSingleProcess) {
  ParityCase c = make(tiny_gpt2());
  c.shape.dropout = 0.3;
  c.clip = 0.05;
  check_parity(c);
}

TEST_P(PipelineParity, LlamaEqualsSingleProcessBitwise) {
  ParityCase c = make(tiny_llama());
  c.bitwise = in_order();
  check_parity(c);
}

/// Faults on two ranks, and in a pipeline with stages that have neighbours on both sides.
class PipelineFault : public PipelineParity {};

TEST_P(PipelineFault, FailsIfATransferIsLost) {
  ParityCase c = make(tiny_gpt2());
  c.steps = 1;
  c.lost_transfer = 1;
  EXPECT_THROW(check_parity(c), ParityError);
}

/// Ends that the two models above do not have, in a pipeline of each placement: stages in a row, in a V, in two
/// directions.
class PipelineEnds : public PipelineParity {};

TEST_P(PipelineEnds, EqualsSingleProcessForOtherModels) {
  models::ModelShape untied = tiny_bert();
  untied.tied = false;
  for (const models::ModelShape& shape :
       {tiny_vit(), tiny_bert(), untied, tiny_bert("class"), tiny_esm2(), tiny_mixed(), tiny_projected()}) {
    ParityCase c = make(shape);
    c.steps = 3;
    EXPECT_NO_THROW(check_parity(c)) << shape.architecture->name << ", tied " << shape.tied;
  }
}

INSTANTIATE_TEST_SUITE_P(Placements, PipelineEnds,
                         testing::Values(Case{"1f1b", 3, 1}, Case{"zero-bubble-v", 2, 2}, Case{"chimera", 2, 2}),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Schedules, PipelineParity, testing::ValuesIn(cases({2, 3, 4})), name_of_case);
INSTANTIATE_TEST_SUITE_P(Schedules, PipelineFault, testing::ValuesIn(cases({2})), name_of_case);
INSTANTIATE_TEST_SUITE_P(ThreeStages, PipelineFault, testing::Values(Case{"1f1b", 3, 1}), name_of_case);

TEST(PipelineOrder, AccumulatesInMicroBatchOrderInMostSchedules) {
  int in_order = 0, all = 0;
  for (const schedule::Family& family : schedule::families()) {
    in_order +=
        schedule::accumulates_in_order(schedule::make_schedule({.name = family.name, .stages = 4, .micro_batches = 8}));
    ++all;
  }
  EXPECT_EQ(in_order, all);
}

class RecomputeParity : public testing::TestWithParam<const char*> {};

// One process first, then stages with split backward passes, then every axis. Recomputed dropout draws the same masks.
TEST_P(RecomputeParity, ChangesNoBit) {
  for (models::ModelShape shape : {tiny_llama(), tiny_vit()}) {
    shape.dropout = 0.2;
    shape.layers = 4;
    ParityCase c{.shape = shape, .steps = 3, .recompute = GetParam(), .bitwise = true};
    check_parity(c);
    for (const char* schedule : {"1f1b", "zero-bubble-v"}) {
      c.pipeline = {.size = 2, .schedule = schedule, .micro_batches = 4};
      check_parity(c);
    }
  }
}

TEST_P(RecomputeParity, EqualsSingleProcessUnderTensorModes) {
  for (const parallel::TensorConfig& tensor :
       std::vector<parallel::TensorConfig>{{.size = 2},
                                           {.size = 3, .sequence = true},
                                           {.size = 4, .mode = "2d"},
                                           {.size = 8, .mode = "3d"},
                                           {.size = 8, .mode = "3d", .keep_gathered = true}}) {
    ParityCase c{.shape = tiny_gpt2(), .tensor = tensor, .steps = 3, .recompute = GetParam()};
    c.shape.dropout = 0.2;
    c.pipeline = {.size = 2, .schedule = "zero-bubble-h1", .micro_batches = 2};
    c.batch = 2 * parallel::batch_parts(tensor);
    check_parity(c);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, RecomputeParity, testing::Values("selective", "block"),
                         [](const auto& info) { return info.param; });

/// Products of all axes on up to 16 ranks.
struct Product {
  int data;
  parallel::TensorConfig tensor;
  int64_t pipeline;
};

std::vector<Product> products() {
  std::vector<Product> list;
  for (const parallel::TensorConfig& tensor :
       std::vector<parallel::TensorConfig>{{},
                                           {.size = 2},
                                           {.size = 2, .sequence = true},
                                           {.size = 4, .mode = "2d"},
                                           {.size = 4, .mode = "2.5d", .depth = 1},
                                           {.size = 8, .mode = "2.5d", .depth = 2},
                                           {.size = 8, .mode = "3d"}})
    for (const int data : {1, 2})
      for (const int64_t pipeline : {2, 4})
        if (data * tensor.size * pipeline <= 16 && data * tensor.size > 1) list.push_back({data, tensor, pipeline});
  return list;
}

class ProductParity : public testing::TestWithParam<Product> {
 protected:
  ParityCase make(const std::string& schedule) const {
    const Product& p = GetParam();
    ParityCase c{.shape = tiny_gpt2(), .data = p.data, .tensor = p.tensor};
    c.shape.layers = 2 * p.pipeline;
    c.shape.dropout = 0.2;
    c.pipeline = {.size = p.pipeline, .schedule = schedule, .micro_batches = p.pipeline};
    c.batch = c.data * parallel::batch_parts(c.tensor) * c.pipeline.micro_batches;
    c.steps = 4;
    c.clip = 0.05;
    return c;
  }
};

TEST_P(ProductParity, OneForwardOneBackward) { check_parity(make("1f1b")); }

TEST_P(ProductParity, FailsWithCollectivesOff) {
  ParityCase c = make("1f1b");
  c.steps = 1;
  c.collectives_off = true;
  EXPECT_THROW(check_parity(c), ParityError);
}

TEST(ProductFault, FailsIfATransferIsLost) {
  ParityCase c{.shape = tiny_gpt2(), .data = 2, .tensor = {.size = 2}};
  c.pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 2};
  c.batch = 4;
  c.steps = 1;
  EXPECT_NO_THROW(check_parity(c));
  c.lost_transfer = 1;
  EXPECT_THROW(check_parity(c), ParityError);
}

/// The largest product of each tensor mode on two stages. Placements in a V and in two directions use groups of every
/// kind there, independent of the number of stages.
class PlacedProductParity : public ProductParity {};

TEST_P(PlacedProductParity, ZeroBubbleV) { check_parity(make("zero-bubble-v")); }
TEST_P(PlacedProductParity, Chimera) { check_parity(make("chimera")); }

std::vector<Product> largest_on_two_stages() {
  std::vector<Product> list = products();
  std::erase_if(list, [](const Product& p) { return p.pipeline != 2 || (p.data == 1 && p.tensor.size < 8); });
  return list;
}

std::string name_of_product(const testing::TestParamInfo<Product>& info) {
  return concat("data", info.param.data, "_", name_of(info.param.tensor), "_pipeline", info.param.pipeline);
}
INSTANTIATE_TEST_SUITE_P(Products, ProductParity, testing::ValuesIn(products()), name_of_product);
INSTANTIATE_TEST_SUITE_P(Products, PlacedProductParity, testing::ValuesIn(largest_on_two_stages()), name_of_product);

}  // namespace
}  // namespace colossal::test::pipeline_parity_test
