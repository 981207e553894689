#include "colossal/ops/updates/adam_8bit.h"

#include "colossal/base/error.h"
#include "ops/compare.h"

namespace colossal::ops::adam_8bit_test {
namespace {

struct Buffers {
  FlatUpdate u;
  CodedState m, v;
  Buffers(int64_t n, at::ScalarType values, at::ScalarType gradients, std::optional<at::ScalarType> copy)
      : u{normal({n}, 1).to(values), normal({n}, 2).to(gradients), {}, 0.5},
        m(n, Codes::Signed),
        v(n, Codes::Positive) {
    if (copy) u.copy = at::empty({n}, *copy);
  }
};

AdamStep step_of(int64_t step) { return {.learning_rate = 0.01, .beta2 = 0.95, .weight_decay = 0.1, .step = step}; }

TEST(Adam8bit, EqualsItsReferenceForOddSizesAndAllTypes) {
  struct Types {
    at::ScalarType values, gradients;
    std::optional<at::ScalarType> copy{};
  };
  for (const auto set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    SCOPED_TRACE(name(set));
    for (const Types& t :
         {Types{at::kDouble, at::kDouble}, Types{at::kFloat, at::kFloat},
          Types{at::kFloat, at::kBFloat16, at::kBFloat16}, Types{at::kFloat, at::kHalf, at::kHalf},
          Types{at::kFloat, at::kFloat, at::kHalf}, Types{at::kBFloat16, at::kBFloat16}, Types{at::kHalf, at::kHalf}})
      for (const int64_t n : {1, 255, 257, 70001}) {
        Buffers fast(n, t.values, t.gradients, t.copy), plain(n, t.values, t.gradients, t.copy);
        for (const int64_t step : {1, 2}) {
          adam_8bit_(fast.u, fast.m, fast.v, step_of(step));
          adam_8bit_reference_(plain.u, plain.m, plain.v, step_of(step));
        }
        // Rounding may move a moment that is midway between two codes to either code.
        EXPECT_LE((fast.m.codes != plain.m.codes).sum().item<int64_t>(), n / 1000)
            << at::toString(t.values) << " " << n;
        EXPECT_LE((fast.v.codes != plain.v.codes).sum().item<int64_t>(), n / 1000)
            << at::toString(t.values) << " " << n;
        EXPECT_TRUE(at::allclose(fast.m.scales, plain.m.scales, 1e-5, 0));
        const at::Tensor off = (fast.u.values.to(at::kDouble) - plain.u.values.to(at::kDouble)).abs();
        // The same holds for a value midway between two bf16 numbers.
        const int64_t ties = t.values == at::kBFloat16 ? 2 + n / 500 : n / 1000;
        EXPECT_LE((off > 1e-5).sum().item<int64_t>(), ties) << at::toString(t.values) << " " << n;
        if (t.copy) {
          EXPECT_TRUE(at::equal(fast.u.copy, fast.u.values.to(*t.copy)));
        }
      }
  }
}

TEST(Adam8bit, EqualsAdamInTheFirstStep) {
  // Zero moments have no quantization error, and a step uses the new moments before they are quantized.
  Buffers coded(1000, at::kFloat, at::kFloat, {}), exact(1000, at::kFloat, at::kFloat, {});
  const at::Tensor start = coded.u.values.clone(), m = at::zeros({1000}), v = at::zeros({1000});
  adam_8bit_(coded.u, coded.m, coded.v, step_of(1));
  adam_(exact.u, m, v, step_of(1));
  EXPECT_FALSE(at::equal(coded.u.values, start));
  EXPECT_TRUE(at::equal(coded.u.values, exact.u.values));
  adam_8bit_(coded.u, coded.m, coded.v, step_of(2));
  adam_(exact.u, m, v, step_of(2));
  EXPECT_FALSE(at::equal(coded.u.values, exact.u.values));
}

TEST(Adam8bit, RefusesMismatchedBuffers) {
  const auto refused = [](auto change, const char* message) {
    Buffers bad(8, at::kFloat, at::kFloat, {});
    AdamStep step = step_of(1);
    change(bad, step);
    try {
      adam_8bit_(bad.u, bad.m, bad.v, step);
      ADD_FAILURE() << "accepted: " << message;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  };
  refused([](Buffers& bad, AdamStep&) { bad.u.gradients = at::zeros({7}); }, "got values [8], gradients [7]");
  refused([](Buffers& bad, AdamStep&) { bad.m = CodedState(9, Codes::Signed); }, "codes [9] and [8]");
  refused([](Buffers& bad, AdamStep&) { bad.u.gradients = at::zeros({8}, at::kDouble); },
          "gradients must have the dtype of the values");
  refused([](Buffers& bad, AdamStep&) { bad.u.copy = at::zeros({8}); }, "a rounded copy");
  refused([](Buffers& bad, AdamStep&) { bad.u.chance = FlatUpdate::Chance{}; }, "does not support stochastic rounding");
  refused([](Buffers&, AdamStep& step) { step.step = 0; }, "step must be at least 1: got 0");
}

}  // namespace
}  // namespace colossal::ops::adam_8bit_test
