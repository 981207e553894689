// Decoding with a cache equals recomputing the whole sequence, token by token, on one rank and in every tensor mode.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/registry.h"
#include "models/hidden_states.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::models::kv_cache_test {
namespace {

class KvCache : public testing::TestWithParam<parallel::TensorConfig> {};

TEST_P(KvCache, EqualsFullRecomputation) {
  for (const ModelShape& shape : {test::tiny_gpt2(), test::tiny_llama()}) {
    comm::run_ranks(static_cast<int>(GetParam().size), [&](comm::World& world) {
      const at::NoGradGuard no_grad;
      comm::Mesh mesh(world, parallel::tensor_axes(GetParam()));
      nn::Parameters parameters(mesh.place(), {at::kDouble, at::kCPU, 5});
      const Model model = make_model(shape, *distributed::make_layers(parameters, mesh, GetParam()));
      const int64_t rows = 2 * model.batch_parts;
      const at::Tensor tokens = (at::arange(rows * 12, at::kLong) * 7).remainder(shape.vocabulary).view({rows, 12});
      const at::Tensor positions = at::arange(12, at::kLong).expand({rows, 12});
      nn::KvCache cache = make_cache(model, rows, 12, at::TensorOptions().dtype(at::kDouble));
      // 5 tokens at once, then one at a time.
      for (int64_t from = 0, to = 5; from < 12; from = to, ++to) {
        nn::Step step{.positions = positions.narrow(1, from, to - from), .cache = &cache};
        const at::Tensor got = hidden_states(model, tokens.narrow(1, from, to - from), step).select(1, -1);
        nn::Step whole{.positions = positions.narrow(1, 0, to)};
        const at::Tensor want = hidden_states(model, tokens.narrow(1, 0, to), whole).select(1, -1);
        test::expect_close(got, want, 64 * shape.layers, concat("hidden state at ", to));
      }
    });
  }
}
INSTANTIATE_TEST_SUITE_P(Serial, KvCache, testing::Values(parallel::TensorConfig{}));
/// Those under which a model decodes: without tensor.sequence (DistributedModel::decoding_model).
std::vector<parallel::TensorConfig> decoding_modes() {
  std::vector<parallel::TensorConfig> modes = test::tensor_modes();
  std::erase_if(modes, [](const parallel::TensorConfig& c) { return c.sequence; });
  return modes;
}
INSTANTIATE_TEST_SUITE_P(Modes, KvCache, testing::ValuesIn(decoding_modes()),
                         [](const auto& info) { return test::name_of(info.param); });

TEST(KvCacheLimit, MoreTokensThanRoomIsAnError) {
  nn::KvCache cache(1, 1, 4, 2, 8, at::TensorOptions().dtype(at::kFloat));
  EXPECT_THROW(cache.append(0, at::zeros({1, 5, 2, 8}), at::zeros({1, 5, 2, 8})), Error);
}

}  // namespace
}  // namespace colossal::models::kv_cache_test
