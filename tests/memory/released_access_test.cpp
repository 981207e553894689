// Direct accesses to the memory of parameters of a chunk store: refused outside of operators, and after its end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/tensor/read_scope.h"
#include "memory/foreign_module.h"

namespace colossal::memory::released_access_test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

template <class Storage>
constexpr bool kAllowsAgain = requires(Storage& storage) { storage.clear_data_ptr_access_error_msg_(); };

void expect_refusal(const at::Tensor& parameter, const std::string& what) {
  EXPECT_THAT([&] { static_cast<void>(parameter.data_ptr()); },
              ThrowsMessage<c10::Error>(testing::AllOf(HasSubstr(what), HasSubstr("gathered()"))));
  EXPECT_THROW(static_cast<void>(parameter.const_data_ptr()), c10::Error);
  EXPECT_THROW(static_cast<void>(parameter.mutable_data_ptr()), c10::Error);
  EXPECT_THROW(static_cast<void>(parameter.storage().data_ptr()), c10::Error);
}

TEST(ReleasedAccess, NamesTheKindOfParameterAndGathered) {
  if (!kAllowsAgain<c10::StorageImpl>) GTEST_SKIP() << "this LibTorch cannot allow access again";
  comm::run_ranks(2, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
    Foreign module;
    module.layers[1]->weight.requires_grad_(false);
    const auto parameters = adopt(module, mesh);
    const ChunkStore store(*parameters, mesh, options_of(3));
    expect_refusal(module.layers[0]->weight, "trained parameter that ZeRO 3 shards over 2 ranks");
    expect_refusal(module.layers[1]->weight, "frozen parameter that ZeRO 3 shards over 2 ranks");
    expect_refusal(module.layers[0]->weight.detach().t(), "trained");
  });
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    Foreign module;
    const auto parameters = adopt(module, mesh);
    const ChunkStore store(*parameters, mesh, options_of(3));
    expect_refusal(module.layers[0]->weight, "offloaded between its uses");
  });
}

// The chunks that a pass leaves gathered refuse access, too: the address would become invalid at the next release.
TEST(ReleasedAccess, RefusesAddressesAfterEachOperator) {
  if (!kAllowsAgain<c10::StorageImpl>) GTEST_SKIP() << "this LibTorch cannot allow access again";
  Foreign alone;
  const at::Tensor want = alone.forward(input());
  comm::run_ranks(2, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
    Foreign module;
    const auto parameters = adopt(module, mesh);
    ChunkStore store(*parameters, mesh, options_of(3));
    for (int pass = 0; pass < 2; ++pass) {
      const at::Tensor loss = module.forward(input());
      EXPECT_TRUE(at::equal(loss, want));
      expect_refusal(module.layers[0]->weight, "trained");
      loss.backward();
      for (const at::Tensor& p : module.parameters()) expect_refusal(p, "trained");
      store.end_pass();
    }
    for (const at::Tensor& p : module.parameters()) expect_refusal(p, "trained");
  });
}

TEST(ReleasedAccess, AllowsAddressesInsideOfAReadScope) {
  Foreign alone;
  comm::run_ranks(2, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
    Foreign module;
    const auto parameters = adopt(module, mesh);
    ChunkStore store(*parameters, mesh, options_of(3));
    const at::Tensor weight = module.layers[0]->weight;
    {
      const tensor::ReadScope read({weight});
      const at::Tensor product = weight.detach().mul(2);  // an inner use, whose end is not the end of the scope
      EXPECT_EQ(weight.const_data_ptr<double>()[1], alone.layers[0]->weight.const_data_ptr<double>()[1]);
    }
    store.end_pass();
  });
}

TEST(ReleasedAccess, RefusesAddressesAfterTheEndOfTheStore) {
  for (const bool keeps_gathered : {false, true}) {
    comm::run_ranks(2, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
      Foreign module;
      const auto parameters = adopt(module, mesh);
      {
        ChunkStore store(*parameters, mesh, options_of(3),
                         keeps_gathered ? std::make_unique<GatherWithin>(int64_t{1} << 40) : nullptr);
        module.forward(input());
        store.end_pass();
      }
      for (const at::Tensor& p : module.parameters()) expect_refusal(p, "end with the training");
      EXPECT_THROW(module.forward(input()), c10::Error) << "an operator does not read a null pointer";
    });
  }
}

TEST(ReleasedAccess, GivesAddressesOfPermanentParameters) {
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    Foreign module;
    const auto parameters = adopt(module, mesh);
    auto store = std::make_unique<ChunkStore>(*parameters, mesh, options_of(2));
    for (const at::Tensor& p : module.parameters()) EXPECT_NE(p.data_ptr(), nullptr);
    store.reset();
    for (const at::Tensor& p : module.parameters()) EXPECT_NE(p.data_ptr(), nullptr);
  });
}

}  // namespace
}  // namespace colossal::memory::released_access_test
