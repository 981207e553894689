// The library's kernels for GPUs; on the trap device, emulated blocks of threads run them. Each kernel must give the
// results of its reference, and integer results must be bitwise equal to those on the CPU.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "accelerator/on_accelerator.h"
#include "colossal/base/error.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/cross_entropy.h"
#include "colossal/ops/linear_token_scores.h"
#include "colossal/ops/random.h"
#include "colossal/ops/rotary.h"
#include "colossal/ops/soft_cap.h"
#include "colossal/ops/updates/adam_8bit.h"
#include "colossal/ops/updates/block_codes.h"
#include "colossal/ops/updates/update.h"
#include "ops/compare.h"
#include "support/accelerator.h"

namespace colossal::ops::kernels_accelerator_test {
namespace {

using test::on_accelerator;

class KernelsOnAccelerator : public test::AcceleratorTest {
 protected:
  KernelsOnAccelerator() : device(test::accelerator()) {}
  const at::Device device;
  test::AcceleratorKernels kernels;
};

// --- activations ---

// The shapes have rows that share a block, rows that take a thread several passes, and tails of both.
const std::vector<std::vector<int64_t>>& gated_shapes() {
  static const std::vector<std::vector<int64_t>> shapes{{7}, {3, 5, 9}, {1300, 6}, {2, 4100}, {0, 4}};
  return shapes;
}

TEST_F(KernelsOnAccelerator, GatedActivationsEqualTheirReferences) {
  const Operator gated = [](const Tensors& t) { return Tensors{swiglu_reference(t[0], t[1])}; };
  const Operator halves = [](const Tensors& t) {
    const auto parts = t[0].chunk(2, -1);
    return Tensors{swiglu_reference(parts[0], parts[1])};
  };
  const Operator gelu_halves = [](const Tensors& t) {
    const auto parts = t[0].chunk(2, -1);
    return Tensors{gelu_reference(parts[0]) * parts[1]};
  };
  for (const auto type : float_types())
    for (const auto& shape : gated_shapes()) {
      SCOPED_TRACE(concat(at::IntArrayRef(shape)));
      expect_equal_operators(on_accelerator([](const Tensors& t) { return Tensors{swiglu(t[0], t[1])}; }), gated,
                             {normal(shape, 1), normal(shape, 2)}, type, 4, 3);
      expect_equal_operators(
          on_accelerator([](const Tensors& t) { return Tensors{sigmoid_gate(t[0], t[1])}; }),
          [](const Tensors& t) { return Tensors{sigmoid_gate_reference(t[0], t[1])}; },
          {normal(shape, 1), normal(shape, 2)}, type, 4, 3);
      auto both = shape;
      both.back() *= 2;
      expect_equal_operators(on_accelerator([](const Tensors& t) { return Tensors{swiglu(t[0])}; }), halves,
                             {normal(both, 1)}, type, 4, 3);
      expect_equal_operators(on_accelerator([](const Tensors& t) { return Tensors{geglu(t[0])}; }), gelu_halves,
                             {normal(both, 1)}, type, 16);
    }
}

TEST_F(KernelsOnAccelerator, LaunchesOneKernelPerActivationAndDirection) {
  const at::Tensor x = normal({5, 18}, 1).to(at::kBFloat16).to(device).requires_grad_();
  const at::Tensor y = swiglu(x);
  EXPECT_EQ(kernels.launches().value_or(1), 1);
  y.backward(at::ones_like(y));
  EXPECT_EQ(kernels.launches().value_or(1), 1);
}

// --- optimizers ---

struct Rule {
  std::string name;
  size_t states;
  std::function<void(const FlatUpdate&, const Tensors&)> ours, reference;
};

std::vector<Rule> rules() {
  const SgdStep plain{.learning_rate = 0.01, .weight_decay = 0.1},
      nesterov{.learning_rate = 0.01, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true, .intake = 0.5};
  const AdamStep adam{.learning_rate = 0.01, .weight_decay = 0.1, .penalty = 0.05, .step = 3};
  const LionStep lion{.learning_rate = 0.01, .weight_decay = 0.1};
  return {
      {"sgd", 0, [=](const auto& u, const auto&) { sgd_(u, {}, plain); },
       [=](const auto& u, const auto&) { sgd_reference_(u, {}, plain); }},
      {"nesterov", 1, [=](const auto& u, const auto& s) { sgd_(u, s[0], nesterov); },
       [=](const auto& u, const auto& s) { sgd_reference_(u, s[0], nesterov); }},
      {"adam", 2, [=](const auto& u, const auto& s) { adam_(u, s[0], s[1], adam); },
       [=](const auto& u, const auto& s) { adam_reference_(u, s[0], s[1], adam); }},
      {"lion", 1, [=](const auto& u, const auto& s) { lion_(u, s[0], lion); },
       [=](const auto& u, const auto& s) { lion_reference_(u, s[0], lion); }},
  };
}

struct Dtypes {
  at::ScalarType values, gradients;
  at::ScalarType copy = at::kByte;  // dtype of the copy; kByte = no copy
};

struct Buffers {
  FlatUpdate u;
  Tensors states;
};

Buffers buffers_of(int64_t n, const Dtypes& types, size_t states, at::Device device) {
  const auto of = [&](uint64_t seed, at::ScalarType type) { return normal({n}, seed).to(type).to(device); };
  Buffers b{{of(1, types.values), of(2, types.gradients), {}, 0.5}, {}};
  if (types.copy != at::kByte) b.u.copy = at::empty({n}, at::TensorOptions(device).dtype(types.copy));
  for (uint64_t s = 0; s < states; ++s) b.states.push_back(of(3 + s, types.values).square_());
  return b;
}

/// Returns the same values in fp64, without a copy.
Buffers exact_of(const Buffers& b) {
  const auto wide = [](const at::Tensor& x) { return test::peek(x).to(at::kDouble); };
  Buffers exact{{wide(b.u.values), wide(b.u.gradients), {}, b.u.gradient_scale}, {}};
  for (const at::Tensor& s : b.states) exact.states.push_back(wide(s));
  return exact;
}

constexpr int64_t kSeveralBlocks = 4 * 4096 + 7;

TEST_F(KernelsOnAccelerator, UpdatesEqualTheirReferences) {
  const std::vector<Dtypes> all{{at::kDouble, at::kDouble},
                                {at::kFloat, at::kFloat, at::kHalf},
                                {at::kFloat, at::kBFloat16, at::kBFloat16},
                                {at::kFloat, at::kHalf},
                                {at::kBFloat16, at::kBFloat16}};
  for (const Rule& rule : rules())
    for (const Dtypes& types : all)
      for (const int64_t n : {int64_t{33}, kSeveralBlocks}) {
        const std::string what = concat(rule.name, " of ", types.values, " by ", types.gradients, ", ", n);
        const Buffers there = buffers_of(n, types, rule.states, device), exact = exact_of(there);
        test::AcceleratorWaits waits;
        kernels.launches();
        rule.ours(there.u, there.states);
        EXPECT_EQ(kernels.launches().value_or(1), 1) << what;
        EXPECT_EQ(waits.counts().waits(), 0) << what;
        rule.reference(exact.u, exact.states);
        const at::Tensor values = test::peek(there.u.values);
        expect_close(values, exact.u.values, types.values, 16, what + ", values");
        for (size_t s = 0; s < rule.states; ++s)
          expect_close(test::peek(there.states[s]), exact.states[s], types.values, 16, what + ", state");
        EXPECT_TRUE(at::equal(test::peek(there.u.gradients).to(at::kDouble), exact.u.gradients)) << what;
        if (there.u.copy.defined()) {
          EXPECT_TRUE(at::equal(test::peek(there.u.copy), values.to(types.copy))) << what;
        }
      }
}

TEST_F(KernelsOnAccelerator, DirectionsAndAveragesEqualTheirReferences) {
  const Buffers there = buffers_of(kSeveralBlocks, {at::kFloat, at::kFloat}, 3, device), exact = exact_of(there);
  const AdamStep step{.learning_rate = 0.01, .weight_decay = 0.1, .step = 3};
  adam_direction_(there.u, there.u.gradients, there.states[0], there.states[1], step);
  adam_direction_reference_(exact.u, exact.u.gradients, exact.states[0], exact.states[1], step);
  expect_close(test::peek(there.u.gradients), exact.u.gradients, at::kFloat, 16, "direction");
  average_(there.u.values, 0.3, there.states[2], 0.2);
  average_reference_(exact.u.values, 0.3, exact.states[2], 0.2);
  expect_close(test::peek(there.u.values), exact.u.values, at::kFloat, 16, "what is left");
  expect_close(test::peek(there.states[2]), exact.states[2], at::kFloat, 16, "average");
  EXPECT_EQ(kernels.launches().value_or(2), 2);
}

TEST_F(KernelsOnAccelerator, RoundsStochasticallyLikeTheCpu) {
  for (const Rule& rule : rules()) {
    const Dtypes types{at::kBFloat16, at::kBFloat16};
    Buffers there = buffers_of(kSeveralBlocks, types, rule.states, device),
            host = buffers_of(kSeveralBlocks, types, rule.states, at::kCPU);
    for (FlatUpdate* u : {&there.u, &host.u}) {
      u->values.fill_(1.0);  // updates are so small in bf16 that chance decides most of them
      u->chance = FlatUpdate::Chance{5, 3};
    }
    const Buffers exact = exact_of(there);
    rule.ours(there.u, there.states);
    rule.ours(host.u, host.states);
    rule.reference(exact.u, exact.states);
    const at::Tensor got = test::peek(there.u.values).to(at::kDouble), want = host.u.values.to(at::kDouble);
    // If the last bit before rounding differs, chance may round another way, in one of 2^16 cases.
    EXPECT_LE(got.ne(want).sum().item<int64_t>(), 8) << rule.name;
    EXPECT_GT(got.ne(exact.u.values.to(at::kBFloat16).to(at::kDouble)).sum().item<int64_t>(), kSeveralBlocks / 8)
        << rule.name << " rounds to the nearest";
  }
}

TEST_F(KernelsOnAccelerator, QuantizesBitwiseLikeTheCpu) {
  for (const Codes kind : {Codes::Signed, Codes::Positive})
    for (const int64_t n : {3, 256, 1500}) {
      // The values have many magnitudes, and include quantized values, midpoints between them, and a block of zeros.
      at::Tensor x = normal({n}, 1).to(at::kFloat) * at::exp(4 * normal({n}, 2)).to(at::kFloat);
      if (kind == Codes::Positive) x.abs_();
      if (n > 600) {
        const auto& values = code_values(kind);
        for (int64_t i = 0; i < 200; ++i) x[i] = i % 2 ? values[i] : (values[i] + values[i + 1]) / 2;
        x[250] = 1;
        x.narrow(0, 256, 256).zero_();
      }
      const CodedState host(n, kind), there(n, kind, device);
      encode_blocks(x, kind, host.codes, host.scales);
      encode_blocks(x.to(device), kind, there.codes, there.scales);
      EXPECT_TRUE(at::equal(test::peek(there.codes), host.codes)) << n;
      EXPECT_TRUE(at::equal(test::peek(there.scales), host.scales)) << n;
      const at::Tensor back = at::empty({n}), back_there = back.to(device);
      decode_blocks(host.codes, host.scales, kind, back);
      decode_blocks(there.codes, there.scales, kind, back_there);
      EXPECT_TRUE(at::equal(test::peek(back_there), back)) << n;
    }
}

TEST_F(KernelsOnAccelerator, UpdatesLikeTheCpuWithQuantizedStates) {
  const AdamStep step{.learning_rate = 0.01, .weight_decay = 0.1, .step = 3};
  for (const Dtypes& types : {Dtypes{at::kFloat, at::kBFloat16, at::kBFloat16}, Dtypes{at::kFloat, at::kHalf},
                              Dtypes{at::kFloat, at::kFloat, at::kHalf}, Dtypes{at::kBFloat16, at::kBFloat16},
                              Dtypes{at::kHalf, at::kHalf}}) {
    const int64_t n = 1500;
    const std::string what = concat(types.values, " by ", types.gradients);
    Buffers there = buffers_of(n, types, 0, device), host = buffers_of(n, types, 0, at::kCPU);
    CodedState m(n, Codes::Signed), v(n, Codes::Positive);
    encode_blocks(normal({n}, 5).to(at::kFloat), Codes::Signed, m.codes, m.scales);
    encode_blocks(normal({n}, 6).to(at::kFloat).square_(), Codes::Positive, v.codes, v.scales);
    const CodedState m_there(m.codes.to(device), m.scales.to(device)), v_there(v.codes.to(device), v.scales.to(device));
    adam_8bit_(there.u, m_there, v_there, step);
    adam_8bit_(host.u, m, v, step);
    const auto wide = [](const at::Tensor& x) { return x.to(at::kDouble); };
    expect_close(wide(test::peek(there.u.values)), wide(host.u.values), types.values, 16, what + ", values");
    // A moment that differs in its last bit may get the neighbouring quantized value.
    for (const auto& [got, want] : {std::pair(m_there, m), std::pair(v_there, v)}) {
      const at::Tensor apart = (test::peek(got.codes).to(at::kInt) - want.codes.to(at::kInt)).abs();
      EXPECT_LE(apart.max().item<int>(), 1) << what;
      EXPECT_LE(apart.sum().item<int64_t>(), 4) << what;
      expect_close(test::peek(got.scales), want.scales, at::kFloat, 16, what + ", scales");
    }
    if (there.u.copy.defined()) {
      EXPECT_TRUE(at::equal(test::peek(there.u.copy), test::peek(there.u.values).to(types.copy))) << what;
    }
  }
}

// --- dropout, rotary embedding, head ---

TEST_F(KernelsOnAccelerator, DropsTheElementsOfTheCpu) {
  for (const auto type : float_types())
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 3}, {700, 13}, {5, 5000}}) {
      const at::Tensor x = normal({rows, columns}, 1).to(type);
      for (const LogicalRows& place : {LogicalRows{7, 100, 230}, LogicalRows{7}}) {
        const at::Tensor want = dropout(x, 0.4, 11, place, 3, columns + 10);
        kernels.launches();
        const at::Tensor got = dropout(x.to(device), 0.4, 11, place, 3, columns + 10);
        EXPECT_EQ(kernels.launches().value_or(1), 1);
        EXPECT_TRUE(at::equal(test::peek(got), want)) << type << ", " << rows << " x " << columns;
      }
    }
  EXPECT_EQ(dropout(at::empty({0, 5}, device), 0.4, 11, {0}, 0, 5).numel(), 0);
}

TEST_F(KernelsOnAccelerator, RotatesLikeItsReferenceWithoutWaits) {
  const at::Tensor positions = (at::arange(20, at::kLong).unsqueeze(0) * 3 + at::tensor({0, 100000}).unsqueeze(1));
  for (const auto type : float_types())
    for (const auto& [head, rotated] :
         std::vector<std::pair<int64_t, int64_t>>{{2, 2}, {6, 6}, {64, 64}, {70, 70}, {70, 22}, {9, 4}}) {
      // Yarn also has a factor of cosines and sines.
      const RotaryTable table(rotated, 10000,
                              {.kind = rotated == head ? RotaryScaling::Kind::None : RotaryScaling::Kind::Yarn,
                               .factor = 4,
                               .original_positions = 64});
      const at::Tensor there = positions.to(device);
      table.frequencies(device);
      const Operator turned = [&](const Tensors& t) {
        test::AcceleratorWaits waits;
        // k is a part of a fused projection.
        auto [q, k] = rotary(t[0], t[1].view({2, 20, 3, t[0].size(3)}).slice(2, 0, 2), there, table);
        EXPECT_EQ(waits.counts().waits(), 0);
        return Tensors{q, k};
      };
      const Operator reference = [&](const Tensors& t) {
        return Tensors{rotary_reference(t[0], positions, table),
                       rotary_reference(t[1].view({2, 20, 3, t[0].size(3)}).slice(2, 0, 2), positions, table)};
      };
      expect_equal_operators(on_accelerator(turned), reference,
                             {normal({2, 20, 21, head}, 1), normal({2, 20, 3 * head}, 2)}, type, 4);
    }
  EXPECT_GT(kernels.launches().value_or(1), 0);
}

TEST_F(KernelsOnAccelerator, PassesTheLengthToDynamicFrequencies) {
  const RotaryTable table(6, 10000, {.kind = RotaryScaling::Kind::Dynamic, .factor = 4, .original_positions = 8});
  const at::Tensor x = normal({1, 20, 3, 6}, 1), positions = at::arange(20, at::kLong).unsqueeze(0);
  for (const int64_t length : {8, 20})
    expect_close(rotary(x.to(device), positions.to(device), table, length).to(at::kCPU),
                 rotary(x, positions, table, length), at::kDouble, 4, concat("length ", length));
  EXPECT_THAT([&] { rotary(x.to(device), positions.to(device), table); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("depend on the sequence length")));
}

/// A reduction over one rank. Its use makes the softmax run the steps of a vocabulary that ranks split.
struct OneRank final : RankReduction {};

TEST_F(KernelsOnAccelerator, HeadsEqualTheirReference) {
  const int64_t words = 37;
  const at::Tensor labels = at::tensor(std::vector<int64_t>{3, 0, 36, kIgnoredLabel, 7, 11}, at::kLong);
  OneRank reduction;
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16})
    for (RankReduction* over_ranks : {static_cast<RankReduction*>(nullptr), static_cast<RankReduction*>(&reduction)})
      for (const int64_t padding : {0, 6}) {
        const Operator ours = [&](const Tensors& t) {
          return Tensors{linear_cross_entropy(t[0], t[1], labels.to(device), {0, words}, over_ranks, 4)};
        };
        const Operator reference = [&](const Tensors& t) {
          return Tensors{cross_entropy(t[0].matmul(t[1].narrow(0, 0, words).t()), labels)};
        };
        kernels.launches();
        expect_equal_operators(on_accelerator(ours), reference, {normal({6, 5}, 1), normal({words + padding, 5}, 2)},
                               type, words + 6 + 6, 3);
        EXPECT_GT(kernels.launches().value_or(1), 0);
        const double cap = 1.5;
        const Operator capped = [&](const Tensors& t) {
          return Tensors{
              linear_cross_entropy(t[0], t[1], labels.to(device), {0, words}, over_ranks, 4, nullptr, {}, cap)};
        };
        const Operator capped_reference = [&](const Tensors& t) {
          return Tensors{cross_entropy(soft_capped(t[0].matmul(t[1].narrow(0, 0, words).t()), cap), labels)};
        };
        expect_equal_operators(on_accelerator(capped), capped_reference,
                               {normal({6, 5}, 1), normal({words + padding, 5}, 2)}, type, words + 6 + 6, 3);
      }
}

/// Log-probabilities and entropies of labels at a temperature, and the same from whole logits.
Operator scores_of(const at::Tensor& labels, const SharedProjection& shared) {
  return [=](const Tensors& t) {
    const TokenScores s = linear_token_scores(t[0], t[1], {}, labels.to(t[0].device()),
                                              {.temperature = 0.8, .entropy = true}, 2.5, shared);
    return Tensors{s.log_probabilities, s.entropies};
  };
}
Operator scores_of_whole_logits(const at::Tensor& labels, int64_t words) {
  return [=](const Tensors& t) {
    const at::Tensor logits = soft_capped(t[0].matmul(t[1].narrow(0, 0, words).t()), 2.5);
    const TokenScores s = token_scores(logits, labels, {.temperature = 0.8, .entropy = true});
    return Tensors{s.log_probabilities, s.entropies};
  };
}

TEST_F(KernelsOnAccelerator, ScoresEqualTheirReference) {
  const int64_t words = 37;
  const at::Tensor labels = at::tensor(std::vector<int64_t>{3, 0, 36, kIgnoredLabel, 7, 11}, at::kLong);
  OneRank reduction;
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16})
    for (RankReduction* over_ranks : {static_cast<RankReduction*>(nullptr), static_cast<RankReduction*>(&reduction)})
      for (const int64_t part : {0, 10}) {  // all words at once, or parts, the last one with padding alone
        kernels.launches();
        expect_equal_operators(on_accelerator(scores_of(
                                   labels, {.range = {0, words}, .reduction = over_ranks, .slice = 4, .words = part})),
                               scores_of_whole_logits(labels, words), {normal({6, 5}, 1), normal({words + 6, 5}, 2)},
                               type, 64 * words, type == at::kBFloat16 ? 20 : 0);
        EXPECT_GT(kernels.launches().value_or(1), 0);
      }
}

TEST_F(KernelsOnAccelerator, HandlesLargeLogitsAndWordsOfOtherRanks) {
  // The logits are so large that e^x would overflow. The rank has a shard of the vocabulary, words 10 to 29, which does
  // not include the label of the last token.
  const at::Tensor hidden = normal({3, 4}, 1) * 300, weight = normal({20, 4}, 2);
  const at::Tensor labels = at::tensor(std::vector<int64_t>{12, 29, 5}, at::kLong);
  OneRank reduction;
  const auto run = [&](at::Device where) {
    at::Tensor h = hidden.to(where).requires_grad_(), w = weight.to(where).requires_grad_();
    const at::Tensor loss = linear_cross_entropy(h, w, labels.to(where), {10, 20}, &reduction, 0);
    loss.backward();
    return Tensors{loss.detach().to(at::kCPU), h.grad().to(at::kCPU), w.grad().to(at::kCPU)};
  };
  const Tensors there = run(device), host = run(at::kCPU);
  for (size_t i = 0; i < there.size(); ++i) expect_close(there[i], host[i], at::kDouble, 20, concat("part ", i), 0);
}

TEST_F(KernelsOnAccelerator, HandlesRowsOfVeryNegativeLogits) {
  // All logits are about -1000, so e^x is 0. The vocabulary is no multiple of the number of logits that a thread reads
  // at once.
  const int64_t words = 37;
  const at::Tensor hidden = at::cat({normal({3, 4}, 1), at::full({3, 1}, -1000, at::kDouble)}, 1),
                   weight = at::cat({normal({words, 4}, 2), at::ones({words, 1}, at::kDouble)}, 1);
  const at::Tensor labels = at::tensor(std::vector<int64_t>{12, 36, 5}, at::kLong);
  const auto run = [&](at::Device where, bool gradient) {
    at::Tensor h = hidden.to(where).requires_grad_(gradient), w = weight.to(where).requires_grad_(gradient);
    const at::Tensor loss = linear_cross_entropy(h, w, labels.to(where));
    if (!gradient) return Tensors{loss.to(at::kCPU)};
    loss.backward();
    return Tensors{loss.detach().to(at::kCPU), h.grad().to(at::kCPU), w.grad().to(at::kCPU)};
  };
  for (const bool gradient : {false, true}) {
    kernels.launches();
    const Tensors there = run(device, gradient);
    EXPECT_GT(kernels.launches().value_or(1), 0);
    const Tensors host = run(at::kCPU, gradient);
    // Logits round a thousand times as much as numbers of about 1, as would a sum of the square of that many terms.
    for (size_t i = 0; i < there.size(); ++i)
      expect_close(there[i], host[i], at::kDouble, words * 1000 * 1000, concat("part ", i));
  }
}

TEST_F(KernelsOnAccelerator, RefusesTensorsOfTheHost) {
  const auto says = [](const char* what) { return testing::ThrowsMessage<Error>(testing::HasSubstr(what)); };
  const at::Tensor x = normal({4}, 1).to(at::kFloat), there = x.to(device);
  EXPECT_THAT([&] { swiglu(there, x); }, says("gate and up must have one shape, dtype and device"));
  EXPECT_THAT([&] { sgd_({there, x}, {}, {}); }, says("of equal length and on one device: got values [4] on"));
  EXPECT_THAT([&] { adam_8bit_({there, x}, {4, Codes::Signed}, {4, Codes::Positive}, {}); }, says("on one device"));
  EXPECT_THAT([&] { rotary(there.view({1, 1, 1, 4}), at::zeros({1, 1}, at::kLong), RotaryTable(4, 100)); },
              says("positions must be on the device of the input"));
  const at::Tensor labels = at::zeros({1}, at::kLong), matrix = there.view({1, 4});
  EXPECT_THAT([&] { linear_cross_entropy(matrix, matrix, labels); },
              says("labels must be on the device of the logits"));
}

}  // namespace
}  // namespace colossal::ops::kernels_accelerator_test
