// Every rank knows the logical tensors of the whole model without communication, including tensors of other pipeline
// stages.
#include "colossal/optim/logical_tensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/comm/run_ranks.h"
#include "optim/shards.h"
#include "support/thrown_message.h"

namespace colossal::optim::logical_tensors_test {
namespace {

std::vector<std::string> names_of(const LogicalTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& entry : tensors.entries()) names.push_back(entry.name);
  return names;
}

TEST(LogicalTensors, EqualOnEveryStageWithoutMessages) {
  comm::run_ranks(2, [](comm::World& world) {
    comm::Mesh mesh(world, {{"pipeline", 2}});
    const auto stages = [](const std::string& name) { return std::vector<int>{name == "last" ? 1 : 0}; };
    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble, .seed = 1, .stages = stages});
    parameters.add("last", tensor::ShardSpec::whole({3, 5}), nn::Init::ones(), true);
    parameters.add("first", tensor::ShardSpec::whole({7}), nn::Init::ones(), true);
    const LogicalTensors tensors(parameters, mesh);
    EXPECT_EQ(world.traffic().total().calls, 0);
    EXPECT_EQ(names_of(tensors), (std::vector<std::string>{"first", "last"}));
    EXPECT_EQ(tensors.entries()[1].spec.shape, (std::vector<int64_t>{3, 5}));

    const memory::Shard shard = make_shard(parameters);
    at::Tensor squares = tensors.zeros();
    tensors.add_squares(shard.pieces(), shard.lease()->values, squares);
    const auto norms = tensors.norms({squares});
    EXPECT_DOUBLE_EQ(norms[0][0].item<double>(), std::sqrt(7.0));  // each is on one rank, and known on both
    EXPECT_DOUBLE_EQ(norms[0][1].item<double>(), std::sqrt(15.0));
    EXPECT_TRUE(at::equal(norms[0], tensors.roots_of_sizes())) << "the elements are ones";
  });
}

TEST(LogicalTensors, SkipFrozenParameters) {
  comm::run_ranks(1, [](comm::World& world) {
    comm::Mesh mesh(world, {});
    nn::Parameters parameters({}, {});
    parameters.adopt("frozen", at::ones({2, 2}), true);
    parameters.adopt("trained", at::ones({2, 2}).requires_grad_(), true);
    EXPECT_EQ(names_of({parameters, mesh}), std::vector<std::string>{"trained"});
  });
}

TEST(LogicalTensors, RefuseUndeclaredFreezingInAPipeline) {
  comm::run_ranks(2, [](comm::World& world) {
    comm::Mesh mesh(world, {{"pipeline", 2}});
    const auto stages = [](const std::string&) { return std::vector<int>{0, 1}; };
    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble, .seed = 1, .stages = stages});
    parameters.add("frozen", tensor::ShardSpec::whole({3}), nn::Init::ones(), true).value.requires_grad_(false);
    EXPECT_THAT(test::thrown_message([&] { LogicalTensors(parameters, mesh); }),
                testing::HasSubstr("frozen is not trained, which the other stages of a pipeline cannot know"));
  });
}

TEST(LogicalTensors, SkipDeclaredFrozenParametersInAPipeline) {
  comm::run_ranks(2, [](comm::World& world) {
    comm::Mesh mesh(world, {{"pipeline", 2}});
    const auto stages = [](const std::string& name) {
      return std::vector<int>{name == "first" || name == "frozen" ? 0 : 1};
    };
    nn::Parameters parameters(mesh.coordinates(),
                              {.dtype = at::kDouble, .stages = stages, .treatment = [](const std::string& name) {
                                 return nn::Treatment{.trains = name != "frozen"};
                               }});
    for (const char* name : {"frozen", "first", "second"})
      parameters.add(name, tensor::ShardSpec::whole({3}), nn::Init::ones(), true);
    EXPECT_EQ(names_of({parameters, mesh}), (std::vector<std::string>{"first", "second"}));
    EXPECT_EQ(parameters.trained_numel(), 6);
    if (world.rank() == 0) EXPECT_FALSE(parameters.at("frozen").value.requires_grad());
  });
}

/// Declares a vector and five experts of [3, 2], of which each of two ranks has room for three.
void declare_stack(nn::Parameters& parameters) {
  parameters.add("bias", tensor::ShardSpec::whole({4}), nn::Init::ones(), false);
  parameters.add("stack", tensor::ShardSpec::split({5, 3, 2}, 0, {"ranks"}), nn::Init::ones(), true).is_stack = true;
}

TEST(LogicalTensors, NumberTheSlicesOfAStack) {
  for (const bool splits_batch : {true, false})
    comm::run_ranks(2, [&](comm::World& world) {
      comm::Mesh mesh(world, {splits_batch ? comm::Mesh::batch("ranks", 2) : comm::Mesh::Axis{"ranks", 2}});
      nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble, .seed = 1});
      declare_stack(parameters);
      const LogicalTensors tensors(parameters, mesh);
      const auto& stack = tensors.entry(parameters.at("stack"));
      EXPECT_EQ(tensors.size(), 6u);
      EXPECT_EQ(stack.first, 1u);
      EXPECT_EQ(stack.count, 5u);
      EXPECT_THAT(stack.shape, testing::ElementsAre(3, 2));
      EXPECT_THAT(stack.shape_of_state({7}), testing::ElementsAre(5, 7));
      EXPECT_THAT(tensors.entry(parameters.at("bias")).shape_of_state({7}), testing::ElementsAre(7));

      // Slices from several ranks are counted once each, and have norms of their own.
      const memory::Shard shard = make_shard({&parameters.at("stack")}, parameters.options(), 0, 1);
      at::Tensor squares = tensors.zeros();
      tensors.add_squares(shard.pieces(), shard.lease()->values, squares);
      const at::Tensor norms = tensors.norms({squares})[0];
      EXPECT_TRUE(at::equal(norms.narrow(0, 1, 5), tensors.roots_of_sizes().narrow(0, 1, 5))) << norms;
    });
}

/// A piece that starts and ends inside slices of the second rank's three, of which the last is padding.
TEST(LogicalTensors, CutPiecesAtSlices) {
  comm::run_ranks(2, [](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("ranks", 2)});
    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble, .seed = 1});
    declare_stack(parameters);
    const LogicalTensors tensors(parameters, mesh);
    if (world.rank() == 0) return;
    const memory::Piece piece{&parameters.at("stack"), 10, {3, 12, true}};  // elements 3 to 15 of 18
    const auto parts = tensors.parts(piece);
    ASSERT_EQ(parts.size(), 2u) << "the padding slice has no part";
    EXPECT_EQ(parts[0].tensor, 4u);  // the vector is tensor 0, and the first rank has slices 0 to 2
    EXPECT_EQ(parts[1].tensor, 5u);
    EXPECT_EQ(parts[0].piece.offset, 10);
    EXPECT_EQ(parts[0].piece.part.first, 3);
    EXPECT_EQ(parts[0].piece.part.size, 3);
    EXPECT_EQ(parts[1].piece.offset, 13);
    EXPECT_EQ(parts[1].piece.part.first, 6);
    EXPECT_EQ(parts[1].piece.part.size, 6);

    // The buffer holds the index of each element in the local tensor, from the tenth element on.
    const at::Tensor buffer = at::arange(-7, 20, at::kDouble);
    at::Tensor slices = at::full({2, 3, 2}, -1, at::kDouble);
    for (const auto& block : tensors.blocks(piece)) {
      EXPECT_TRUE(block.counts);
      block.in(slices[static_cast<int64_t>(block.tensor) - 4]).copy_(block.of(buffer));
    }
    const std::vector<double> want{-1, -1, -1, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    EXPECT_TRUE(at::equal(slices.view({-1}), at::tensor(want, at::kDouble))) << slices;
  });
}

}  // namespace
}  // namespace colossal::optim::logical_tensors_test
