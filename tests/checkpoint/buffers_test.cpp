// Buffers of a model in a Hugging Face folder, together with its parameters.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::checkpoint::buffers_test {
namespace {

/// A model with a weight, a buffer with a name in folders, and a buffer without one.
struct Model {
  explicit Model(comm::Mesh& mesh) : parameters(mesh.coordinates(), {}) {
    parameters.add("weight", tensor::ShardSpec::whole({2, 3}), nn::Init::normal(1), true);
    parameters.buffer("load", tensor::ShardSpec::whole({4}), at::kDouble);
    parameters.buffer("past", tensor::ShardSpec::whole({4}), at::kFloat, nn::BufferUse::Training);
  }
  nn::Parameters parameters;
};

TEST(Buffers, RoundTripUnderTheirFolderNames) {
  const test::TemporaryFolder folder;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"data", 1}});
    Model written(mesh), read(mesh);
    const ExternalNames names{{{"weight", {"w"}}, {"load", {"router.load"}}}, "", {}};
    written.parameters.buffers()[0].value.copy_(at::arange(1, 5));
    written.parameters.buffers()[1].value.fill_(7);
    export_weights(folder.path(), written.parameters, names, {{"model_type", "x"}}, mesh.group("data"));
    import_weights(folder.path(), read.parameters, names);
    EXPECT_TRUE(at::equal(read.parameters.buffers()[0].value, at::arange(1, 5).to(at::kDouble)));
    EXPECT_TRUE(at::equal(read.parameters.buffers()[1].value, at::zeros({4}))) << "it is no part of the model";
  });
}

TEST(Buffers, RefuseToExportAModelWithAnAdapter) {
  const test::TemporaryFolder folder;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"data", 1}});
    nn::Parameters parameters(mesh.coordinates(),
                              {.products = {[](auto product, const nn::Parameter& weight, auto& all) {
                                 all.add(weight.name + ".added", tensor::ShardSpec::whole({1}), nn::Init::ones(), true);
                                 return product;
                               }}});
    const nn::Parameter& weight = parameters.add("weight", tensor::ShardSpec::whole({2, 3}), nn::Init::normal(1), true);
    parameters.product_for(weight, nullptr);
    EXPECT_TRUE(parameters.at("weight.added").is_added);
    const std::string message = test::thrown_message([&] {
      export_weights(folder.path(), parameters, {{{"weight", {"w"}}}, "", {}}, {{"model_type", "x"}},
                     mesh.group("data"));
    });
    EXPECT_THAT(message, testing::HasSubstr("got weight.added, which an adapter added"));
  });
}

}  // namespace
}  // namespace colossal::checkpoint::buffers_test
