// Each layer of a factory against the serial one on integers: every sum is exact whatever its order, so results must be equal bit for
// bit, and a difference is an error of layout, never of rounding.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <map>

#include "colossal/base/seed.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/train/engine.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test {
namespace {

constexpr int64_t kBatch = 4, kSequence = 3, kHidden = 12, kFfn = 20, kVocabulary = 11;

/// Small integers in doubles, drawn from `name`.
at::Tensor integers(std::vector<int64_t> sizes, const std::string& name) {
  auto generator = at::detail::createCPUGenerator(derive_seed(5, name));
  return at::randint(-3, 4, sizes, generator, at::TensorOptions().dtype(at::kDouble));
}

/// A few layers chained, without anything that rounds. Output: what each rank holds whole.
struct Chain {
  explicit Chain(nn::Layers& make, const nn::AttentionShape& shape) : shape(shape) {
    embedding = make.embedding("embedding", kVocabulary, kHidden, 1);
    positions = make.positions("positions", kSequence, kHidden, 1);
    heads = make.heads("qkv", shape, {});
    from_heads = make.from_heads("out", shape, {});
    up = make.expand("up", kHidden, kFfn, {});
    down = make.contract("down", kFfn, kHidden, {});
    head = make.lm_head("head", kHidden, kVocabulary, 1, embedding.get());
  }
  at::Tensor hidden(const at::Tensor& ids) {
    const at::Tensor where = at::arange(ids.size(1), ids.options()).expand_as(ids);
    const at::Tensor x = embedding->forward(ids) + positions->forward(where);
    const nn::Heads h = heads->forward(x);
    const int64_t group = h.q.size(2) / h.k.size(2);  // q heads that share a kv head
    const at::Tensor mixed = h.q + h.k.repeat_interleave(group, 2) - 2 * h.v.repeat_interleave(group, 2);
    const at::Tensor y = x + from_heads->forward(mixed.flatten(2));
    return y + down->forward(up->forward(y));
  }
  nn::AttentionShape shape;
  std::unique_ptr<nn::Embedding> embedding, positions;
  std::unique_ptr<nn::HeadProjection> heads;
  std::unique_ptr<nn::Linear> from_heads, up, down;
  std::unique_ptr<nn::LossHead> head;
};

struct Results {
  at::Tensor hidden, logits;
  std::map<std::string, at::Tensor> gradients;
};

Results run(comm::World& world, int tensor, const nn::AttentionShape& shape) {
  comm::Mesh mesh(world, {{"data", 1}, {"tensor", tensor}});
  nn::Parameters parameters(mesh.place(), {.dtype = at::kDouble});
  const auto make = train::make_layers(parameters, mesh);
  Chain chain(*make, shape);
  for (nn::Parameter& p : parameters) {
    const at::NoGradGuard no_grad;
    p.value.copy_(local_part(integers(p.spec.shape, p.name), p.spec, mesh.place()));
  }
  const at::Tensor ids = integers({kBatch, kSequence}, "ids").abs().to(at::kLong);
  Results r;
  r.hidden = chain.hidden(ids);
  r.hidden.backward(integers(r.hidden.sizes().vec(), "gradient"));
  {
    const at::NoGradGuard no_grad;
    r.logits = chain.head->logits(r.hidden);
  }
  for (const nn::Parameter& p : parameters) r.gradients[p.name] = p.value.grad();
  return r;
}

void check(int tensor, const nn::AttentionShape& shape, bool collectives_off) {
  Results want;
  comm::run_ranks(1, [&](comm::World& world) { want = run(world, 1, shape); });
  comm::run_ranks(tensor, [&](comm::World& world) {
    const Results got = run(world, tensor, shape);
    expect_equal(got.hidden, want.hidden, "hidden state");
    expect_equal(got.logits, want.logits, "logits");
    comm::Mesh mesh(world, {{"data", 1}, {"tensor", tensor}});
    nn::Parameters parameters(mesh.place(), {.dtype = at::kDouble});
    const auto make = train::make_layers(parameters, mesh);
    const Chain chain(*make, shape);
    for (const nn::Parameter& p : parameters)
      expect_equal(got.gradients.at(p.name), local_part(want.gradients.at(p.name), p.spec, mesh.place()), "gradient of " + p.name);
  }, {.collectives_off = collectives_off});
}

class IntegerParity : public testing::TestWithParam<int> {
 protected:
  void both(const nn::AttentionShape& shape) const {
    EXPECT_NO_THROW(check(GetParam(), shape, false));
    EXPECT_THROW(check(GetParam(), shape, true), ParityError);
  }
};

TEST_P(IntegerParity, EveryLayerIsBitwiseThatOfOneProcess) { both({.hidden = kHidden, .heads = 4, .kv_heads = 4, .head_dim = 3}); }
TEST_P(IntegerParity, SharedKvHeadsAreBitwiseThoseOfOneProcess) { both({.hidden = kHidden, .heads = 4, .kv_heads = 1, .head_dim = 3}); }
TEST_P(IntegerParity, PaddedHeadsAreBitwiseThoseOfOneProcess) { both({.hidden = kHidden, .heads = 3, .kv_heads = 3, .head_dim = 4}); }

INSTANTIATE_TEST_SUITE_P(Tensor, IntegerParity, testing::Values(2, 3, 4));

}  // namespace
}  // namespace colossal::test
