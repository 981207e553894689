// Every rank knows the logical tensors of the whole model without communication, including tensors of other pipeline
// stages.
#include "colossal/optim/logical_tensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/comm/run_ranks.h"
#include "optim/shards.h"
#include "support/ranks_values.h"

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

}  // namespace
}  // namespace colossal::optim::logical_tensors_test
