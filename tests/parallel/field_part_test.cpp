// A rank's part of a field follows from the kinds of its dimensions.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "support/thrown_message.h"

namespace colossal::parallel::field_part_test {
namespace {

using tensor::Dim;
using testing::HasSubstr;

at::Tensor numbered(int64_t rows, int64_t columns) {
  return at::arange(rows * columns, at::kLong).view({rows, columns});
}

tensor::Batch batch() {
  tensor::Batch batch;
  batch.add("ids", {numbered(4, 8), {Dim::Row, Dim::Token}});
  batch.add("answer", {numbered(4, 4), {Dim::Row, Dim::Token}});
  batch.add("pairs", {at::arange(4 * 64, at::kLong).view({4, 8, 8}), {Dim::Row, Dim::Token, Dim::Other}});
  batch.add("features", {numbered(4, 6), {Dim::Row, Dim::Feature}});
  batch.add("notes", {.tensor = numbered(4, 8), .dims = {Dim::Row, Dim::Token}, .stays_whole = true});
  return batch;
}

TEST(FieldPart, DividesTokensByTheCutAndOtherLengthsNearlyEvenly) {
  comm::run_ranks(2, [](comm::World& world) {
    const SequenceConfig config{2, "ring"};
    comm::Mesh mesh(world, sequence_axes(config));
    const Layout layout = with_sequence(make_layout({}, mesh), config);
    nn::Parameters parameters(mesh.coordinates(), {});
    const nn::FieldPart part = TensorLayers(parameters, layout).field_part();
    const tensor::Batch whole = batch();
    const nn::ForwardContext step = layout.with_cut(nn::step_of(whole), 8);
    const nn::Share own = layout.tokens_read(step);
    const auto of = [&](const char* name) { return part(whole.field(name), step); };
    EXPECT_FALSE(at::equal(of("ids"), whole.at("ids").narrow(1, world.rank() * 4, 4))) << "not in equal runs";
    EXPECT_TRUE(at::equal(of("ids"), own.of(whole.at("ids"), 1, "sequence")));
    EXPECT_TRUE(at::equal(of("notes"), own.of(whole.at("notes"), 1, "sequence")));
    EXPECT_TRUE(at::equal(of("pairs"), own.of(whole.at("pairs"), 1, "sequence")));
    EXPECT_TRUE(at::equal(of("answer"), whole.at("answer").narrow(1, world.rank() * 2, 2)));
    EXPECT_TRUE(at::equal(of("features"), whole.at("features")));
    const tensor::Field odd{numbered(4, 3), {Dim::Row, Dim::Token}};
    EXPECT_TRUE(at::equal(part(odd, step), odd.tensor.narrow(1, 2 * world.rank(), 2 - world.rank())));
    EXPECT_EQ(local_sizes(layout, layout.outside, {4, 3, 3}, {Dim::Row, Dim::Token, Dim::Other}, 8, step),
              (std::vector<int64_t>{4, 2 - world.rank(), 3}));
    EXPECT_THAT(test::thrown_message([&] { part(whole.field("ids"), {}); }),
                HasSubstr("[model] a step must have its micro-batch, of which a layer reads a field"));
  });
}

TEST(FieldPart, DividesRowsAndFeaturesLikeHiddenStates) {
  comm::run_ranks(4, [](comm::World& world) {
    const TensorConfig config{.size = 4, .mode = "2d"};
    comm::Mesh mesh(world, tensor_axes(config));
    const Layout layout = make_layout(config, mesh);
    nn::Parameters parameters(mesh.coordinates(), {});
    const nn::FieldPart part = TensorLayers(parameters, layout).field_part();
    const tensor::Batch whole = batch();
    const nn::ForwardContext step = nn::step_of(whole);
    const int64_t row = mesh.coordinates().index(layout.outside.batch),
                  column = mesh.coordinates().index(layout.outside.columns);
    EXPECT_TRUE(at::equal(part(whole.field("features"), step),
                          whole.at("features").narrow(0, 2 * row, 2).narrow(1, 3 * column, 3)));
    EXPECT_TRUE(at::equal(part(whole.field("ids"), step), whole.at("ids").narrow(0, 2 * row, 2)));
  });
}

TEST(FieldPart, ReturnsTheWholeFieldOnOneProcess) {
  nn::Parameters parameters({}, {});
  nn::SerialLayers layers(parameters);
  const tensor::Batch whole = batch();
  EXPECT_TRUE(at::equal(layers.field_part()(whole.field("features"), {}), whole.at("features")));
}

}  // namespace
}  // namespace colossal::parallel::field_part_test
