// Latent attention in every tensor mode against one process, in fp64: with and without a latent of queries, and with
// heads that are padded. The formula of one process: nn/latent_heads_test.cpp.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <map>

#include "colossal/base/seed.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/latent_heads.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/nn/tokens.h"
#include "colossal/ops/rotary.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test::latent_parity_test {
namespace {

using parallel::TensorConfig;

constexpr int64_t kHidden = 36, kSequence = 12, kRotated = 4;
// Rounding of products over hidden features and keys, of which six follow one another in each direction.
constexpr int64_t kTerms = 16 * kHidden * kSequence;

at::Tensor values(std::vector<int64_t> sizes, const std::string& name) {
  auto generator = at::detail::createCPUGenerator(derive_seed(5, name));
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble)) * 0.5;
}

struct Results {
  at::Tensor out, input_gradient;  // this rank's part
  std::map<std::string, at::Tensor> gradients;
};

/// Sizes of one comparison.
struct Sizes {
  int64_t heads, q_rank;
  nn::AttentionShape shape() const { return {kHidden, heads, heads, 7, 5}; }
};

template <class Part>
Results run_attention(nn::Layers& make, comm::Mesh& mesh, const Sizes& sizes, int64_t batch,
                      const nn::ForwardContext& step, const Part& part) {
  nn::Parameters& parameters = make.parameters();
  const auto heads = make.latent_heads("attention", sizes.shape(),
                                       {.q_rank = sizes.q_rank,
                                        .kv_rank = 9,
                                        .rope_dim = kRotated,
                                        .rotary = std::make_shared<const ops::RotaryTable>(kRotated, 100),
                                        .interleaved = true});
  const auto attention = make.attention("attention", sizes.shape(), {});
  const auto out = make.from_heads("attention.out", sizes.shape(), {});
  {
    const at::NoGradGuard no_grad;
    for (nn::Parameter& p : parameters)
      p.value.copy_(local_part(values(p.spec.shape, p.name), p.spec, mesh.coordinates()));
  }
  memory::ChunkStore store(parameters, mesh, {.capacity = 1 << 17});
  parallel::GradientReducer reducer(store, {.sums = at::kDouble});
  const at::Tensor x = part(values({batch, kSequence, kHidden}, "x")).requires_grad_();
  Results r;
  r.out = out->forward(attention->forward(heads->forward(x, step), step), step);
  reducer.begin(true);
  r.out.backward(part(values({batch, kSequence, kHidden}, "gradient")));
  reducer.finish();
  r.input_gradient = x.grad();
  for (const nn::Parameter& p : parameters) r.gradients[p.name] = p.value.grad().clone();
  return r;
}

/// Checks the layer under `config`; `cut` is parallel::Layout::cut.
void check(const TensorConfig& config, const Sizes& sizes, bool collectives_off = false,
           decltype(parallel::Layout::cut) cut = {}) {
  const int64_t batch = parallel::batch_parts(config) * 2;
  const nn::ForwardContext all{.positions = at::arange(kSequence, at::kLong).expand({batch, -1})};
  Results want;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"data", 1}});
    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
    nn::SerialLayers make(parameters);
    want = run_attention(make, mesh, sizes, batch, all, [](const at::Tensor& x) { return x; });
  });
  comm::run_ranks(static_cast<int>(config.size),
                  [&](comm::World& world) {
                    comm::Mesh mesh(world, parallel::tensor_axes(config));
                    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
                    parallel::Layout layout = parallel::make_layout(config, mesh);
                    layout.cut = cut;
                    parallel::TensorLayers make(parameters, layout);
                    const nn::ForwardContext step = layout.with_cut(all, kSequence);
                    const auto part = [&](const at::Tensor& whole) {
                      return parallel::part_of(layout, layout.outside, whole, step).contiguous();
                    };
                    const Results got = run_attention(make, mesh, sizes, batch, step, part);
                    expect_close(got.out, part(want.out), kTerms, "output");
                    expect_close(got.input_gradient, part(want.input_gradient), kTerms, "input gradient");
                    for (const nn::Parameter& p : parameters)
                      expect_close(got.gradients.at(p.name),
                                   local_part(want.gradients.at(p.name), p.spec, mesh.coordinates()),
                                   kTerms * batch * kSequence, "gradient of " + p.name);
                  },
                  {.collectives_off = collectives_off});
}

class LatentParity : public testing::TestWithParam<TensorConfig> {};

TEST_P(LatentParity, EqualsOneProcess) {
  for (const Sizes& sizes : {Sizes{6, 10}, Sizes{6, 0}, Sizes{5, 10}, Sizes{5, 0}}) {
    EXPECT_NO_THROW(check(GetParam(), sizes)) << sizes.heads << " heads, rank " << sizes.q_rank;
    EXPECT_THROW(check(GetParam(), sizes, true), ParityError) << sizes.heads << " heads, rank " << sizes.q_rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, LatentParity, testing::ValuesIn(tensor_modes()),
                         [](const auto& info) { return name_of(info.param); });

// Ranks hold runs of both ends of the sequence outside. Positions and causal attention need the order of the sequence.
TEST(LatentSequenceCut, KeepsTheOrderOfACutSequence) {
  const nn::SequenceCut cut{.lengths = {4, 2, 4, 2}, .held = {{0, 3}, {1, 2}}};
  for (const int64_t q_rank : {10, 0})
    EXPECT_NO_THROW(check({.size = 2, .sequence = true}, {6, q_rank}, false, [=](auto...) { return cut; })) << q_rank;
}

}  // namespace
}  // namespace colossal::test::latent_parity_test
