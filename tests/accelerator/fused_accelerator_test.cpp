// The operators that accelerators run in place of the library's kernels. These are LibTorch's fused operators, with
// LibTorch's own schemas and checks, whose results must equal the library's references. Passes that consist of several
// LibTorch operators run slice by slice, because temporaries as large as the whole tensor would be too large.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "accelerator/on_accelerator.h"
#include "colossal/base/error.h"
#include "colossal/memory/device_meter.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/cross_entropy.h"
#include "colossal/ops/device/tables.h"
#include "colossal/ops/linear_token_scores.h"
#include "colossal/ops/norm.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/ops/random.h"
#include "colossal/ops/reduce.h"
#include "colossal/ops/updates/factored.h"
#include "colossal/ops/updates/update.h"
#include "ops/compare.h"
#include "support/accelerator.h"
#include "support/called_operators.h"

namespace colossal::ops::fused_accelerator_test {
namespace {

using test::on_accelerator;

/// The library's own kernels are removed: a GPU would run them instead.
class FusedOnAccelerator : public test::AcceleratorTest {
  DeviceTablesScope without_kernels_{test::accelerator().type(), nullptr};
};

// --- norms and activations ---

// Number of roundings of intermediate results that are allowed. LibTorch's CPU kernel of LayerNorm, which the trap
// device runs, rounds its statistics to a narrow dtype; the kernel of a GPU does not.
constexpr double kNarrowStatistics = 4;

TEST_F(FusedOnAccelerator, NormsEqualTheirReferences) {
  const test::CalledOperators called;
  for (const auto type : float_types())
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 7}, {2, 5, 64}, {7}}) {
      const Tensors in{normal(shape, 1) + 0.5, normal({shape.back()}, 3), normal({shape.back()}, 4)};
      expect_equal_operators(
          on_accelerator([](const Tensors& t) { return Tensors{layer_norm(t[0], t[1], t[2], 1e-5)}; }),
          [](const Tensors& t) { return Tensors{layer_norm_reference(t[0], t[1], t[2], 1e-5)}; }, in, type,
          in[0].numel(), kNarrowStatistics);
      expect_equal_operators(
          on_accelerator([](const Tensors& t) { return Tensors{layer_norm(t[0], t[1], {}, 1e-5)}; }),
          [](const Tensors& t) { return Tensors{layer_norm_reference(t[0], t[1], {}, 1e-5)}; }, {in[0], in[1]}, type,
          in[0].numel(), kNarrowStatistics);
      expect_equal_operators(
          on_accelerator([](const Tensors& t) { return Tensors{rms_norm(t[0], t[1], 1e-5)}; }),
          [](const Tensors& t) { return Tensors{rms_norm_reference(t[0], t[1], 1e-5)}; }, {in[0], in[1]}, type,
          in[0].numel());
      expect_equal_operators(
          on_accelerator([](const Tensors& t) { return Tensors{layer_norm(t[0], t[1], t[2], 1e-5, 1)}; }),
          [](const Tensors& t) { return Tensors{layer_norm_reference(t[0], t[1] + 1, t[2], 1e-5)}; }, in, type,
          in[0].numel());
      expect_equal_operators(
          on_accelerator([](const Tensors& t) { return Tensors{rms_norm(t[0], t[1], 1e-5, 1)}; }),
          [](const Tensors& t) { return Tensors{rms_norm_reference(t[0], t[1] + 1, 1e-5)}; }, {in[0], in[1]}, type,
          in[0].numel());
    }
  for (const char* name :
       {"native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"})
    EXPECT_TRUE(called(name)) << name;
}

TEST_F(FusedOnAccelerator, GatedActivationsEqualTheirReferences) {
  const test::CalledOperators called;
  for (const auto type : float_types()) {
    expect_equal_operators(
        on_accelerator([](const Tensors& t) { return Tensors{swiglu(t[0], t[1])}; }),
        [](const Tensors& t) { return Tensors{swiglu_reference(t[0], t[1])}; },
        {normal({3, 5, 9}, 1), normal({3, 5, 9}, 2)}, type, 4, 3);
    expect_equal_operators(
        on_accelerator([](const Tensors& t) { return Tensors{swiglu(t[0])}; }),
        [](const Tensors& t) {
          const auto halves = t[0].chunk(2, -1);
          return Tensors{swiglu_reference(halves[0], halves[1])};
        },
        {normal({3, 5, 18}, 1)}, type, 4, 3);
  }
  EXPECT_TRUE(called("silu_backward"));
}

// --- optimizers ---

struct Buffers {
  FlatUpdate u;
  at::Tensor m, v;
};

Buffers buffers_of(int64_t n, at::ScalarType type, at::ScalarType gradients, bool copy, double scale,
                   at::Device device) {
  // Computed on the CPU, because devices round products of narrow numbers differently.
  const auto of = [&](const at::Tensor& x, at::ScalarType dtype) { return x.to(dtype).to(device); };
  Buffers b{{of(normal({n}, 1), type), of(normal({n}, 2), gradients), {}, scale},
            of(normal({n}, 3) * 0.1, type),
            of(normal({n}, 4).square(), type)};
  if (copy) b.u.copy = at::empty({n}, at::TensorOptions(device).dtype(at::kBFloat16));
  return b;
}

constexpr AdamStep kAdamW{.learning_rate = 0.01, .weight_decay = 0.1, .step = 3},
    kAdam{.learning_rate = 0.01, .penalty = 0.1, .step = 3},
    kBoth{.learning_rate = 0.01, .weight_decay = 0.1, .penalty = 0.1, .step = 3};

void expect_adam(int64_t n, at::ScalarType type, at::ScalarType gradients, bool copy, double scale,
                 const AdamStep& step, const std::string& what) {
  const Buffers there = buffers_of(n, type, gradients, copy, scale, test::accelerator());
  const at::Tensor before = test::peek(there.u.gradients);
  test::AcceleratorWaits waits;
  adam_(there.u, there.m, there.v, step);
  EXPECT_EQ(waits.counts().waits(), 0) << what;
  // The reference computes in fp64, from the same values.
  const Buffers host = buffers_of(n, type, gradients, false, scale, at::kCPU);
  const FlatUpdate exact{host.u.values.to(at::kDouble), host.u.gradients.to(at::kDouble), {}, scale};
  const at::Tensor m = host.m.to(at::kDouble), v = host.v.to(at::kDouble);
  adam_reference_(exact, m, v, step);
  expect_close(test::peek(there.u.values), exact.values, type, 16, what + ", values");
  expect_close(test::peek(there.m), m, type, 16, what + ", average");
  expect_close(test::peek(there.v), v, type, 16, what + ", average of squares");
  EXPECT_TRUE(at::equal(test::peek(there.u.gradients), before)) << what << ": gradients are only read";
  if (copy) {
    EXPECT_TRUE(at::equal(test::peek(there.u.copy), test::peek(there.u.values).to(at::kBFloat16))) << what;
  }
}

TEST_F(FusedOnAccelerator, AdamEqualsItsReference) {
  const auto adam = [](at::ScalarType type, at::ScalarType gradients, bool copy, double scale, const AdamStep& step,
                       const char* runs) {
    const test::CalledOperators called;
    const std::string what = concat(type, ", gradients ", gradients, " times ", scale);
    expect_adam(33, type, gradients, copy, scale, step, what);
    for (const char* name : {"_fused_adamw_", "_fused_adam_"})
      EXPECT_EQ(called(name) > 0, std::string(name) == runs) << what << ": " << name;
  };
  for (const double scale : {1.0, 0.5}) {
    adam(at::kDouble, at::kDouble, false, scale, kAdamW, "_fused_adamw_");
    adam(at::kFloat, at::kFloat, true, scale, kAdamW, "_fused_adamw_");
    adam(at::kFloat, at::kBFloat16, true, scale, kAdamW, "_fused_adamw_");
    adam(at::kFloat, at::kHalf, false, scale, kAdam, "_fused_adam_");
    adam(at::kFloat, at::kFloat, false, scale, kBoth, "our own");
  }
  adam(at::kBFloat16, at::kBFloat16, false, 1, kAdamW, "_fused_adamw_");
  adam(at::kBFloat16, at::kBFloat16, false, 0.5, kAdamW, "our own");
}

constexpr int64_t kMoreThanASlice = (1 << 22) + 5;

TEST_F(FusedOnAccelerator, UpdatesAllElementsInSlices) {
  expect_adam(kMoreThanASlice, at::kFloat, at::kFloat, false, 0.5, kAdamW, "slices");
  Buffers one = buffers_of(kMoreThanASlice, at::kFloat, at::kFloat, false, 0.5, test::accelerator()), other = one;
  for (at::Tensor* t : {&other.u.values, &other.m}) *t = t->clone();
  const LionStep lion{.learning_rate = 0.01, .weight_decay = 0.1};
  lion_(one.u, one.m, lion);
  lion_reference_(other.u, other.m, lion);
  EXPECT_TRUE(at::equal(test::peek(one.u.values), test::peek(other.u.values)));
  EXPECT_TRUE(at::equal(test::peek(one.m), test::peek(other.m)));
}

/// Returns the peak memory of the accelerator while `body` runs, in bytes, less the memory in use before.
template <class Body>
int64_t peak_bytes_of(const Body& body) {
  memory::restart_peak(test::accelerator());
  const int64_t before = memory::peak_bytes(test::accelerator());
  body();
  return memory::peak_bytes(test::accelerator()) - before;
}

// The values are integers whose sums are exact in any order.
TEST_F(FusedOnAccelerator, RunsFactoredPassesInSlices) {
  constexpr int64_t kSlice = int64_t{1} << 22, kColumns = 4096, kRows = 2 * kSlice / kColumns + 1;
  const auto integers = [](at::IntArrayRef shape, int64_t most) {
    return at::arange(c10::multiply_integers(shape), at::kLong).remainder(2 * most + 1).sub(most).view(shape);
  };
  const at::Tensor matrix = integers({kRows, kColumns}, 8).to(at::kBFloat16);
  const auto run = [&](at::Device where) {
    const auto numbers = [&](int64_t n, int64_t most) { return integers({n}, most).to(at::kFloat).to(where); };
    const at::Tensor x = matrix.to(where), to = at::empty(matrix.sizes(), x.options().dtype(at::kFloat));
    const at::Tensor rows = at::ones({kRows}, at::TensorOptions(where).dtype(at::kDouble)),
                     columns = at::ones({kColumns}, rows.options());
    const at::Tensor row_factors = numbers(kRows, 3), column_factors = numbers(kColumns, 5);
    at::Tensor total;
    const auto passes = [&] {
      add_square_sums(x, rows, columns);
      total = scale_rows_columns(x, row_factors, column_factors, to);
    };
    if (where.is_cpu())
      passes();
    else  // per element of a slice an fp64 square, and 16 bytes that LibTorch's sum over rows takes on a GPU
      EXPECT_LE(peak_bytes_of(passes), (8 + 16) * kSlice + (1 << 20));
    return Tensors{rows, columns, to, total};
  };
  const Tensors there = run(test::accelerator()), host = run(at::kCPU);
  for (size_t i = 0; i < host.size(); ++i) EXPECT_TRUE(at::equal(test::peek(there[i]), host[i])) << i;
}

TEST_F(FusedOnAccelerator, SumsSquaresInOnePass) {
  for (const auto type : float_types()) {
    const at::Tensor x = normal({1000}, 1).to(type);
    const test::CalledOperators called;
    const at::Tensor sum = sum_of_squares(x.to(test::accelerator()));
    EXPECT_EQ(sum.scalar_type(), at::kDouble);
    expect_close(test::peek(sum), sum_of_squares_reference(x), at::kDouble, 1000, at::toString(type));
    EXPECT_TRUE(called("_foreach_norm"));
  }
}

TEST_F(FusedOnAccelerator, DropsTheElementsOfTheCpuInSlices) {
  const at::Tensor x = at::ones({1100, 1000});
  const LogicalRows rows{7, 100, 230};
  const at::Tensor want = dropout(x, 0.4, 11, rows, 3, 1010);
  EXPECT_TRUE(at::equal(test::peek(dropout(x.to(test::accelerator()), 0.4, 11, rows, 3, 1010)), want));
}

// --- head ---

TEST_F(FusedOnAccelerator, HeadsOfOddVocabulariesEqualTheReference) {
  const at::Tensor labels = at::tensor(std::vector<int64_t>{3, 0, 36, kIgnoredLabel, 7}, at::kLong);
  for (const auto type : {at::kFloat, at::kBFloat16})
    expect_equal_operators(
        on_accelerator([&](const Tensors& t) {
          return Tensors{linear_cross_entropy(t[0], t[1], labels.to(t[0].device()), {}, nullptr, 2)};
        }),
        [&](const Tensors& t) { return Tensors{cross_entropy(t[0].matmul(t[1].t()), labels)}; },
        {normal({5, 6}, 1), normal({37, 6}, 2)}, type, 37 + 6 + 5, 3);
}

TEST_F(FusedOnAccelerator, ScoresEqualTheirReference) {
  const at::Tensor labels = at::tensor(std::vector<int64_t>{3, 0, 36, kIgnoredLabel, 7}, at::kLong);
  const ScoreOptions options{.temperature = 0.8, .entropy = true};
  for (const int64_t part : {0, 10})  // all words at once, or parts, the last one with padding alone
    expect_equal_operators(
        on_accelerator([&](const Tensors& t) {
          const TokenScores s = linear_token_scores(t[0], t[1], {}, labels.to(t[0].device()), options, 0,
                                                    {.range = {0, 37}, .slice = 2, .words = part});
          return Tensors{s.log_probabilities, s.entropies};
        }),
        [&](const Tensors& t) {
          const TokenScores s = token_scores(t[0].matmul(t[1].narrow(0, 0, 37).t()), labels, options);
          return Tensors{s.log_probabilities, s.entropies};
        },
        {normal({5, 6}, 1), normal({43, 6}, 2)}, at::kFloat, 64 * 37);
}

TEST_F(FusedOnAccelerator, UsesLargerSlicesForHeads) {
  EXPECT_EQ(slice_tokens(1 << 20, 128 << 10), 128);
  EXPECT_EQ(slice_tokens(1 << 20, 128 << 10, test::accelerator()), 1024);
  EXPECT_EQ(slice_tokens(1 << 20, 128 << 10, at::kMeta), 128);
}

TEST_F(FusedOnAccelerator, WritesWideProductsInPlace) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor a = normal({5, 6}, 1).to(type), b = normal({37, 6}, 2).to(type), d = normal({5, 37}, 3).to(type);
    const auto there = at::TensorOptions(test::accelerator()).dtype(at::kFloat);
    at::Tensor logits = empty_rows(5, 37, there), sum = at::ones({37, 6}, there);
    const test::CalledOperators called;
    matmul_nt_(logits, a.to(test::accelerator()), b.to(test::accelerator()), 0);
    matmul_tn(d.to(test::accelerator()), a.to(test::accelerator()), sum);
    EXPECT_TRUE(called.with("mm", logits)) << "in padded rows";
    EXPECT_TRUE(called.with("addmm", sum));
    const auto exact = [](const at::Tensor& x) { return x.to(at::kDouble); };
    expect_close(test::peek(logits), exact(a).matmul(exact(b).t()), at::kFloat, 6, "logits");
    expect_close(test::peek(sum), exact(d).t().matmul(exact(a)) + 1, at::kFloat, 6, "sum");
  }
}

TEST_F(FusedOnAccelerator, MeasuresThePeakBetweenEvents) {
  test::AcceleratorWaits waits;
  const double peak = matmul_peak(at::kFloat, test::accelerator(), 0);
  EXPECT_EQ(waits.counts().waits(), 0) << "nothing is read";
  // The smallest product, of side 1024, already takes more than 2 ms on the trap device: it consists of two operators
  // of kTrapMilliseconds each. One of them transposes the second matrix.
  constexpr double kOperations = 2.0 * 1024 * 1024 * 1024, kSeconds = 2 * test::kTrapMilliseconds / 1e3;
  if (waits.are_counted())
    EXPECT_DOUBLE_EQ(peak, kOperations / kSeconds);
  else
    EXPECT_GT(peak, 0);
}

}  // namespace
}  // namespace colossal::ops::fused_accelerator_test
