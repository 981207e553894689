// What accelerators run in place of our kernels: LibTorch's fused operators, by the schemas and checks of its own and
// with the numbers of our references; and passes in slices over what is too large for tensor operators.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <set>

#include "colossal/base/error.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/attention.h"
#include "colossal/ops/cross_entropy.h"
#include "colossal/ops/norm.h"
#include "colossal/ops/peak.h"
#include "colossal/ops/random.h"
#include "colossal/ops/reduce.h"
#include "colossal/ops/update.h"
#include "ops/compare.h"
#include "support/trap_device.h"

namespace colossal::ops::fused_trap_test {
namespace {

/// Names of the operators that ran on the device while it lives, by any thread.
class Called {
 public:
  Called() : handle_(at::addGlobalCallback(at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}))) {
    names().clear();
  }
  ~Called() { at::removeCallback(handle_); }
  Called(const Called&) = delete;
  Called& operator=(const Called&) = delete;
  bool operator()(const std::string& name) const {
    const std::lock_guard lock(mutex());
    return names().contains("aten::" + name);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::set<std::string>& names() {
    static std::set<std::string> all;
    return all;
  }
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& fn) {
    const std::lock_guard lock(mutex());
    names().insert(fn.name());
    return nullptr;
  }
  at::CallbackHandle handle_;
};

class FusedOnTrap : public testing::Test {
 protected:
  static void SetUpTestSuite() { test::trap_device(); }
};

Operator on_trap(const Operator& op) {
  return [op](const Tensors& host) {
    Tensors there, back;
    for (const at::Tensor& t : host) there.push_back(t.to(test::trap_device()));
    for (const at::Tensor& t : op(there)) back.push_back(t.to(at::kCPU));
    return back;
  };
}

// --- attention ---

struct Case {
  int64_t queries, keys;
  bool causal = true, documents = false;
  int64_t window = 0, kv_heads = 2;
};

Tensors inputs_of(const Case& c) {
  return {normal({2, 4, c.queries, 8}, 1), normal({2, c.kv_heads, c.keys, 8}, 2),
          normal({2, c.kv_heads, c.keys, 8}, 3)};
}

/// Documents of 5 tokens, in the second row with other borders.
at::Tensor runs_of(int64_t keys) {
  return (at::arange(keys, at::kLong).unsqueeze(0) + 2 * at::arange(2, at::kLong).unsqueeze(1)).div(5, "floor");
}

AttentionMask mask_of(const Case& c) {
  return {.causal = c.causal, .documents = c.documents ? runs_of(c.keys) : at::Tensor(), .window = c.window};
}

TEST_F(FusedOnTrap, PackedAttentionEqualsItsReference) {
  std::vector<Case> cases{{7, 13}, {7, 13, true, false, 4}, {7, 13, false, false, 4}};
  for (const bool causal : {true, false})
    for (const bool documents : {true, false})
      for (const int64_t window : {0, 4})
        if (documents || window > 0) cases.push_back({13, 13, causal, documents, window, causal ? 2 : 4});
  for (const Case& c : cases)
    for (const auto type : {at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(
          concat(c.queries, " of ", c.keys, " causal ", c.causal, " documents ", c.documents, " window ", c.window));
      const auto mask = mask_of(c);
      const Called called;
      expect_equal_operators(
          on_trap([&](const Tensors& t) { return Tensors{attention(t[0], t[1], t[2], mask)}; }),
          [&](const Tensors& t) { return Tensors{attention_reference(t[0], t[1], t[2], mask)}; }, inputs_of(c), type,
          c.keys + 8, 2);
      EXPECT_TRUE(called("_flash_attention_forward") && called("_flash_attention_backward"));
      EXPECT_FALSE(called("scaled_dot_product_attention")) << "there is a mask";
    }
}

TEST_F(FusedOnTrap, ReadsHeadsWhereAProjectionPutsThem) {
  const AttentionMask mask = mask_of({13, 13, true, true});
  const auto heads = [&](const at::Tensor& x) { return x.transpose(1, 2).contiguous().transpose(1, 2); };
  expect_equal_operators(
      on_trap([&](const Tensors& t) { return Tensors{attention(heads(t[0]), heads(t[1]), heads(t[2]), mask)}; }),
      [&](const Tensors& t) { return Tensors{attention_reference(t[0], t[1], t[2], mask)}; }, inputs_of({13, 13}),
      at::kBFloat16, 21, 2);
}

Tensors there_of(const Case& c, at::ScalarType type) {
  Tensors all;
  for (const at::Tensor& t : inputs_of(c)) all.push_back(t.to(type).to(test::trap_device()));
  return all;
}

TEST_F(FusedOnTrap, APathIsChosenByTypeAndMask) {
  using enum AttentionPath;
  const Tensors narrow = there_of({13, 13}, at::kBFloat16), wide = there_of({13, 13}, at::kFloat);
  const auto path = [](const Tensors& t, const AttentionMask& mask) { return attention_path(false, t[0], t[1], mask); };
  EXPECT_EQ(path(narrow, {}), Library);
  EXPECT_EQ(path(narrow, {.window = 4}), Packed);
  EXPECT_EQ(path(narrow, {.documents = runs_of(13)}), Packed);
  EXPECT_EQ(path(wide, {.documents = runs_of(13)}), Masked) << "flash attention is of narrow numbers";
  EXPECT_EQ(path(narrow, {.documents = runs_of(13).to(test::trap_device())}), Masked) << "the host knows no borders";
  EXPECT_EQ(path(narrow, {.documents = at::arange(13, at::kLong).remainder(3).expand({2, 13})}), Masked);
  EXPECT_EQ(path(narrow, {.alibi = alibi_slopes(4)}), Masked);
  EXPECT_EQ(path(narrow, {.soft_cap = 3}), Reference);
  EXPECT_EQ(path(there_of({7, 13}, at::kHalf), {}), Packed) << "LibTorch's causal mask starts at the first key";
  const Tensors odd{narrow[0].narrow(3, 0, 7), narrow[1].narrow(3, 0, 7)};
  EXPECT_EQ(path(odd, {.window = 4}), Masked) << "heads of 7 numbers";
}

TEST_F(FusedOnTrap, NobodyWaitsForDocuments) {
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    const Tensors t = there_of({13, 13}, type);
    const test::TrapWaits several(test::trap_device());
    attention(t[0], t[1], t[2], {.documents = runs_of(13)});
    EXPECT_EQ(several.counts().waits(), 0) << several.counts();
    EXPECT_EQ(several.counts().copies_not_awaited, 1);
    const test::TrapWaits one(test::trap_device());
    attention(t[0], t[1], t[2], {.documents = at::full({2, 13}, 3, at::kLong)});
    EXPECT_EQ(one.counts().waits() + one.counts().copies_not_awaited, 0) << "what hides nothing is no mask";
  }
}

}  // namespace
}  // namespace colossal::ops::fused_trap_test
