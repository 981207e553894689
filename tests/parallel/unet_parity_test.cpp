// The UNet, whose blocks pass on skips of several sizes, under every layout against one process in fp64: losses,
// gradients, and weights after some steps. With collectives off each case must fail with a ParityError, or it proves
// nothing. COLOSSAL_ALL_LAYOUTS=1 runs products of layouts that a fast run leaves out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/models/families/unet.h"
#include "colossal/models/registry.h"
#include "colossal/models/unet_parts.h"
#include "colossal/schedule/make.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::test::unet_parity_test {
namespace {

using parallel::TensorConfig;
using testing::HasSubstr;

bool runs_all() { return std::getenv("COLOSSAL_ALL_LAYOUTS") != nullptr; }

ParityCase unet_case() { return {.shape = tiny_unet(), .batch = 2, .sequence = 24, .steps = runs_all() ? 2 : 1}; }

/// Returns the case with a tensor layout and the fewest rows, two or more, that it can divide.
ParityCase with_tensor(ParityCase c, const TensorConfig& tensor) {
  c.tensor = tensor;
  const int64_t parts = c.data * parallel::batch_parts(c.tensor) * (c.pipeline.size > 1 ? c.pipeline.micro_batches : 1);
  c.batch = std::max<int64_t>(2, parts);
  return c;
}

/// Returns layouts of whole features and of features that are split, with rows that are the same inside or not.
std::vector<TensorConfig> tensor_layouts() {
  std::vector<TensorConfig> layouts{{.size = 2}, {.size = 4, .mode = "2d"}, {.size = 8, .mode = "3d"}};
  if (runs_all()) {
    layouts.push_back({.size = 4});
    layouts.push_back({.size = 8, .mode = "2.5d", .depth = 2});
    layouts.push_back({.size = 8, .mode = "3d", .keep_gathered = true});
  }
  return layouts;
}

TEST(Unet, EqualsSingleProcessInEveryTensorMode) {
  for (const TensorConfig& tensor : tensor_layouts()) {
    SCOPED_TRACE(name_of(tensor));
    ParityCase c = with_tensor(unet_case(), tensor);
    EXPECT_NO_THROW(check_parity(c));
    if (!runs_all() && tensor.size > 4) continue;
    c.collectives_off = true;
    c.steps = 1;
    EXPECT_THROW(check_parity(c), ParityError);
  }
}

// Each rank has heads of its own, the last one padded.
TEST(Unet, EqualsSingleProcessWithHeadsThatDoNotDivide) {
  ParityCase c = unet_case();
  auto own = c.shape.own.as<models::UnetSizes>();
  own.features = {12, 12};
  own.attention_heads = {3, 1};
  own.linear_projection = true;
  c.shape.own = own;
  c.shape.architecture->settle(c.shape);
  EXPECT_NO_THROW(check_parity(with_tensor(c, {.size = 2})));
}

/// Returns a case of SDXL's form: transformers of several layers, a pooled text and sizes.
ParityCase sdxl_case() {
  ParityCase c = unet_case();
  auto own = c.shape.own.as<models::UnetSizes>();
  own.transformers = {0, 2};
  own.pooled = 10, own.size_features = 4;
  own.linear_projection = true;
  c.shape.own = own;
  c.shape.architecture->settle(c.shape);
  return c;
}

TEST(Unet, EqualsSingleProcessWithTransformersOfSeveralLayers) {
  for (const TensorConfig& tensor : tensor_layouts()) {
    if (!runs_all() && tensor.size > 4) continue;
    SCOPED_TRACE(name_of(tensor));
    ParityCase c = sdxl_case();
    if (tensor.size == 2) c.pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 2};
    if (tensor.size == 2) c.recompute = "block";
    EXPECT_NO_THROW(check_parity(with_tensor(c, tensor)));
  }
}

// A layer of a transformer and the one before it are on two ranks: what it reads of them is the state of the layers and
// the pixels before the first one.
TEST(Unet, EqualsSingleProcessIfATransformerIsCut) {
  ParityCase c = sdxl_case();
  const auto blocks = static_cast<int64_t>(c.shape.layers);
  const std::vector<models::UnetPart> parts = models::unet_parts(c.shape.own.as<models::UnetSizes>());
  const auto last =
      std::find_if(parts.begin(), parts.end(), [](const models::UnetPart& part) { return part.layer == 1; });
  const int64_t cut = last - parts.begin();
  c.pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 2, .layers_per_stage = {cut, blocks - cut}};
  EXPECT_NO_THROW(check_parity(with_tensor(c, {})));
}

TEST(Unet, EqualsSingleProcessWithReplicasThatShardParameters) {
  for (const TensorConfig& tensor : tensor_layouts()) {
    if (tensor.size > (runs_all() ? 8 : 2)) continue;
    SCOPED_TRACE(name_of(tensor));
    ParityCase c = unet_case();
    c.data = 2;
    c.zero = 3;
    c.recompute = "block";
    EXPECT_NO_THROW(check_parity(with_tensor(c, tensor)));
  }
}

TEST(Unet, EqualsSingleProcessUnderEverySchedule) {
  for (const schedule::Family& family : schedule::families()) {
    const std::string name = family.name;
    if (!runs_all() && name != "1f1b" && name != "zero-bubble-v") continue;
    SCOPED_TRACE(name);
    ParityCase c = unet_case();
    c.pipeline = {.size = 2, .schedule = name, .micro_batches = 4};
    EXPECT_NO_THROW(check_parity(with_tensor(c, {})));
  }
}

TEST(Unet, EqualsSingleProcessInPipelinesOfOtherModes) {
  for (const TensorConfig& tensor : tensor_layouts()) {
    if (!runs_all() && tensor.size > 2) continue;
    SCOPED_TRACE(name_of(tensor));
    ParityCase c = unet_case();
    c.pipeline = {.size = 2, .schedule = "zero-bubble-h1", .micro_batches = 2};
    c.recompute = "selective";
    EXPECT_NO_THROW(check_parity(with_tensor(c, tensor)));
  }
}

TEST(Unet, FailsIfAStateIsLostBetweenStages) {
  ParityCase c = unet_case();
  c.pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 2};
  c.steps = 1;
  for (const int transfer : {0, 2, 4}) {  // of the first micro-batch: a hidden state, and what waits for the way up
    c.lost_transfer = transfer;
    EXPECT_THROW(check_parity(c), ParityError) << transfer;
  }
}

TEST(Unet, ChangesNoBitIfBlocksAreRecomputed) {
  for (ParityCase c : {unet_case(), sdxl_case()}) {
    c.bitwise = true;
    for (const char* recompute : {"selective", "block"}) {
      c.recompute = recompute;
      check_parity(c);
    }
  }
}

TEST(Unet, RefusesLayoutsThatSplitPixelsOrGroups) {
  const auto refused = [](ParityCase c) { return thrown_message([&] { check_parity(c); }); };
  ParityCase c = unet_case();
  c.sequences = {.size = 2, .mode = "ulysses"};
  EXPECT_THAT(refused(c), HasSubstr("a UNet must have all pixels of a picture on one rank"));
  EXPECT_THAT(refused(with_tensor(unet_case(), {.size = 2, .sequence = true})), HasSubstr("leave out"));
  EXPECT_THAT(
      refused(with_tensor(unet_case(), {.size = 3})),
      HasSubstr("parallel.tensor.size must divide norm_num_groups (model.groups), so that each rank has whole "
                "groups of a norm: got 3 ranks that divide features, and 4 groups; the next smaller number is 2"));
}

}  // namespace
}  // namespace colossal::test::unet_parity_test
